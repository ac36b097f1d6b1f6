"""From keys to znodes and back: BookKeeper's own layout, and next to it a tree for what only Quire keeps.

| key | znode under the root |
| --- | --- |
| `ledgers/<19 digits>` | the path that the cluster's layout gives the id (the table below) |
| `bookies/available/<id>` | `available/<id>` |
| `bookies/readonly/<id>` | `available/readonly/<id>` |
| `cookies/<id>` | `cookies/<id>` |
| `underreplication/ledgers/<19 digits>` | `underreplication/ledgers/AAAA/BBBB/CCCC/DDDD/urL<10 digits or more>` |
| `underreplication/locks/<19 digits>` | `underreplication/locks/urL<10 digits or more>` |
| `underreplication/auditorelection/<19 digits>` | `underreplication/auditorelection/V_<10 digits>` |
| `underreplication/disable`, `…/lostBookieRecoveryDelay` | the same |
| any other, `a/b/c` | `quire/a+/b+/c`: folders end in `+`, so that a key may also be the beginning of another |

| layout | path of a ledger |
| --- | --- |
| flat | `L` and 10 digits |
| legacyhierarchical | 10 digits as 2 / 4 / `L` 4; ids below 2147483647 only |
| longhierarchical | 19 digits as 3 / 4 / 4 / 4 / `L` 4 |
| hierarchical | as legacyhierarchical below 2147483647, else as longhierarchical |

`AAAA` to `DDDD` are the ledger's id in hexadecimal digits.

Pure: knows no connection.

Source: BookKeeper source, `HierarchicalLedgerManager`, `LongHierarchicalLedgerManager`, `FlatLedgerManager`,
`LedgerLayout`, `ZkLedgerUnderreplicationManager`; tests/vectors/ledger_paths.json; tests/vectors/layout.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from quire.core.errors import CorruptMetadataError, MisuseError, NoClusterError
from quire.core.ids import ID_MAX
from quire.metadata.bookies import AVAILABLE, COOKIES, READONLY
from quire.metadata.keys import AUDITORS, DISABLE, LEDGERS, LOCKS, LOST_DELAY, MISSING, UNDERREPLICATION
from quire.metadata.zookeeper.options import ZookeeperLayout
from quire.wire.bookie_service_info import check_bookie_id

SHORT_ID_END: Final = 2**31 - 1
"""Ids below this one have short paths."""
OWN: Final = "quire"
FOLDER_END: Final = "+"
SEQUENCE_ZEROS: Final = "0" * 9
"""ZooKeeper appends 10 digits to a sequential znode; with these in front they are 19."""
LAYOUT_VERSION: Final = 2
MANAGER_VERSION: Final = 1
_PACKAGE: Final = "org.apache.bookkeeper.meta."
_CLASSES: Final = {
    ZookeeperLayout.HIERARCHICAL: "HierarchicalLedgerManagerFactory",
    ZookeeperLayout.LONG_HIERARCHICAL: "LongHierarchicalLedgerManagerFactory",
    ZookeeperLayout.FLAT: "FlatLedgerManagerFactory",
    ZookeeperLayout.LEGACY_HIERARCHICAL: "LegacyHierarchicalLedgerManagerFactory",
}
_DIGITS: Final = 19
_SHORT_CUTS: Final = (2, 4, 4)
_LONG_CUTS: Final = (3, 4, 4, 4, 4)
_MARK_CUTS: Final = (4, 4, 4, 4)
_HEX: Final = re.compile("[0-9a-f]{4}")
MARK: Final = "urL"
VOTE: Final = "V_"
_SAFE: Final = "!$&'()*,:;=@-._~^ "
"""Characters of a key's part that stand for themselves in a znode's name; all others are percent-encoded."""


def layout_text(layout: ZookeeperLayout) -> bytes:
    """The value of LAYOUT."""
    return f"{LAYOUT_VERSION}\n{_PACKAGE}{_CLASSES[layout]}:{MANAGER_VERSION}".encode()


def parse_layout(text: bytes, where: str) -> ZookeeperLayout:
    """The layout that a LAYOUT names.

    Raises:
        CorruptMetadataError: it is no LAYOUT.
        NoClusterError: it is one of a kind that Quire does not know.
    """
    lines = text.decode("utf-8", "replace").split("\n")
    name, colon, version = lines[1].rpartition(":") if len(lines) > 1 else ("", "", "")
    if lines[0] not in {"1", "2"} or not colon or not version.isdecimal() or "".join(lines[2:]).strip():
        raise CorruptMetadataError(
            f"{where}/LAYOUT is damaged or not BookKeeper's: it reads {text[:80]!r}", path=where
        )
    for layout, kind in _CLASSES.items():
        if name == _PACKAGE + kind or (lines[0] == "1" and name == layout.value):
            return layout
    raise NoClusterError(f"{where} has the layout {name}, which Quire does not know", path=where)


def encode_part(part: str) -> str:
    """A part of a key as a znode's name."""
    name = quote(part, safe=_SAFE)
    return name.replace(".", "%2E") if name in {".", ".."} else name


def decode_part(name: str) -> str:
    """The part of a key that a znode's name stands for."""
    return unquote(name)


ChildSpan = Callable[[str], tuple[int, int] | None]
"""The first and the last id below a child of a folder; None if no id is."""


class IdTree(NamedTuple):
    """Keys that end in 19 digits, in folders whose names are parts of the id.

    Attributes:
        begin: what the keys begin with.
        root: the folder of all.
        children: how to read the children of a folder, by the names below `root`; None if ids have no such folder.
        number: the id whose znode is at these names below `root`; None if there is none.
        path: the znode of an id.
    """

    begin: str
    root: str
    children: Callable[[tuple[str, ...]], ChildSpan | None]
    number: Callable[[tuple[str, ...]], int | None]
    path: Callable[[int], str]


class FlatFolder(NamedTuple):
    """Keys that are the children of one folder.

    Attributes:
        begin: what the keys begin with.
        path: the folder.
        name: the child for the rest of a key; None if it has none here.
        rest: the rest of the key for a child; None if it is no key's.
    """

    begin: str
    path: str
    name: Callable[[str], str | None]
    rest: Callable[[str], str | None]

    def meets(self, prefix: str) -> bool:
        """Whether keys of this folder may begin with a prefix; what follows `begin` has no slash."""
        return self.begin.startswith(prefix) or (
            prefix.startswith(self.begin) and "/" not in prefix[len(self.begin) :]
        )


class KeyPaths:
    """Keys and paths of one cluster.

    Args:
        root: the cluster's path.
        layout: where ledgers are.
    """

    def __init__(self, root: str, layout: ZookeeperLayout) -> None:
        self.root = root
        self.layout = layout
        self.available = f"{root}/available"
        self.readonly = f"{root}/available/readonly"
        self.cookies = f"{root}/cookies"
        self.own = f"{root}/{OWN}"
        marks = f"{root}/{UNDERREPLICATION}"
        self.marks = marks + "ledgers"
        self.trees = (
            IdTree(LEDGERS, root, self.ledger_folders, self.ledger_id, self.ledger),
            IdTree(MISSING, self.marks, mark_folders, mark_id, self.mark),
        )
        bookies = [(AVAILABLE, self.available), (READONLY, self.readonly), (COOKIES, self.cookies)]
        self.flat_folders = (
            *(FlatFolder(begin, folder, _bookie_id, _bookie_id) for begin, folder in bookies),
            FlatFolder(LOCKS, marks + "locks", *_numbered(MARK)),
            FlatFolder(AUDITORS, marks + "auditorelection", *_numbered(VOTE)),
            FlatFolder(UNDERREPLICATION, marks[:-1], _setting, _setting),
        )

    # --- ledgers -------------------------------------------------------------------------------------------------

    def ledger(self, ledger_id: int) -> str:
        """The path of a ledger's record.

        Raises:
            MisuseError: the layout has no path for ids this large.
        """
        if self.layout is ZookeeperLayout.FLAT:
            return f"{self.root}/L{ledger_id:010d}"
        short = ledger_id < SHORT_ID_END
        if self.layout is ZookeeperLayout.LEGACY_HIERARCHICAL and not short:
            raise MisuseError(
                f"the layout {self.layout.value} has no place for ledger {ledger_id}: its ids end at {SHORT_ID_END - 1}",
                ledger_id=ledger_id,
            )
        if short and self.layout is not ZookeeperLayout.LONG_HIERARCHICAL:
            *folders, last = _cut(f"{ledger_id:010d}", _SHORT_CUTS)
        else:
            *folders, last = _cut(f"{ledger_id:019d}", _LONG_CUTS)
        return "/".join((self.root, *folders, "L" + last))

    def ledger_id(self, names: tuple[str, ...]) -> int | None:
        """The ledger whose record is at these names under the root; None if that is no ledger of this layout."""
        last = names[-1]
        if not last.startswith("L"):
            return None
        digits = "".join(names[:-1]) + last[1:]
        if not (digits.isascii() and digits.isdecimal()) or len(digits) > _DIGITS:
            return None
        ledger_id = int(digits)
        if ledger_id > ID_MAX or self._beyond(ledger_id):
            return None
        return ledger_id if self.ledger(ledger_id) == "/".join((self.root, *names)) else None

    def _beyond(self, ledger_id: int) -> bool:
        return self.layout is ZookeeperLayout.LEGACY_HIERARCHICAL and ledger_id >= SHORT_ID_END

    def mark(self, ledger_id: int) -> str:
        """The path of BookKeeper's under-replicated mark of a ledger."""
        return "/".join((self.marks, *_cut(f"{ledger_id:016x}", _MARK_CUTS), f"{MARK}{ledger_id:010d}"))

    def ledger_folders(self, names: tuple[str, ...]) -> ChildSpan | None:
        """How to read the children of a folder of ledgers: child name -> first and last id below it.

        Args:
            names: the folder under the root; () is the root.

        Returns:
            None if ledgers have no such folder.
        """
        if self.layout is ZookeeperLayout.FLAT:
            return self._flat_child if not names else None
        cuts = _LONG_CUTS if self._is_long(names) else _SHORT_CUTS

        def span(child: str) -> tuple[int, int] | None:
            depth = len(names)
            here = cuts if names else (_LONG_CUTS if self._is_long((child,)) else _SHORT_CUTS)
            digits = child[1:] if depth == len(here) - 1 and child.startswith("L") else child
            if depth >= len(here) or len(digits) != here[depth] or not _is_number(digits):
                return None
            if not names and not self._has_tree(long=here is _LONG_CUTS):
                return None
            head = "".join(names) + digits
            rest = sum(here) - len(head)
            return int(head + "0" * rest), int(head + "9" * rest)

        return span

    def _flat_child(self, child: str) -> tuple[int, int] | None:
        ledger_id = self.ledger_id((child,))
        return None if ledger_id is None else (ledger_id, ledger_id)

    def _has_tree(self, *, long: bool) -> bool:
        if long:
            return self.layout in {ZookeeperLayout.HIERARCHICAL, ZookeeperLayout.LONG_HIERARCHICAL}
        return self.layout is not ZookeeperLayout.LONG_HIERARCHICAL

    @staticmethod
    def _is_long(names: tuple[str, ...]) -> bool:
        return bool(names) and len(names[0]) == _LONG_CUTS[0]

    # --- all keys ------------------------------------------------------------------------------------------------

    def path(self, key: str) -> str:
        """The znode of a key."""
        for tree in self.trees:
            digits = key.removeprefix(tree.begin)
            if digits != key and len(digits) == _DIGITS and _is_number(digits) and int(digits) <= ID_MAX:
                return tree.path(int(digits))
        for begin, folder, name_of, _ in self.flat_folders:
            name = name_of(key.removeprefix(begin)) if key.startswith(begin) else None
            if name is not None:
                return f"{folder}/{name}"
        *folders, last = key.split("/")
        return "/".join((self.folder(folders), encode_part(last)))

    def folder(self, parts: list[str]) -> str:
        """The folder in Quire's own tree of keys that begin with these parts."""
        return "/".join((self.own, *(encode_part(part) + FOLDER_END for part in parts)))

    def key(self, path: str) -> str | None:
        """The key that a znode holds; None for folders and what is no key's."""
        if path.startswith(self.own + "/"):
            *folders, last = path[len(self.own) + 1 :].split("/")
            if last.endswith(FOLDER_END) or not all(name.endswith(FOLDER_END) for name in folders):
                return None
            return "/".join([decode_part(name[:-1]) for name in folders] + [decode_part(last)])
        for begin, folder, _, rest_of in self.flat_folders:
            child = path.removeprefix(folder + "/")
            rest = rest_of(child) if child != path else None
            if rest is not None:
                return begin + rest
        for tree in self.trees:
            below = path.removeprefix(tree.root + "/")
            number = tree.number(tuple(below.split("/"))) if below != path else None
            if number is not None:
                return f"{tree.begin}{number:019d}"
        return None

    def watched(self, prefix: str) -> list[str]:
        """The znodes below which every key with a prefix lies: where to watch for it."""
        places = [folder.path for folder in self.flat_folders if folder.meets(prefix)]
        if prefix in {DISABLE, LOST_DELAY}:
            places = [self.path(prefix)]
        for tree in self.trees:
            if _meet(prefix, tree.begin):
                exact = prefix.startswith(tree.begin) and len(prefix) == len(tree.begin) + _DIGITS
                places.append(self.path(prefix) if exact else tree.root)
        *folders, _ = prefix.split("/")
        places.append(self.folder(folders))
        places.sort(key=len)
        return [
            place
            for i, place in enumerate(places)
            if not any(place == other or place.startswith(other + "/") for other in places[:i])
        ]


def mark_folders(names: tuple[str, ...]) -> ChildSpan | None:
    """How to read a folder of BookKeeper's marks: four levels of four hexadecimal digits, then the mark."""
    depth = len(names)

    def span(child: str) -> tuple[int, int] | None:
        if depth == len(_MARK_CUTS):
            found = mark_id((*names, child))
            return None if found is None else (found, found)
        if depth > len(_MARK_CUTS) or not _HEX.fullmatch(child):
            return None
        head = "".join((*names, child))
        return int(head.ljust(16, "0"), 16), int(head.ljust(16, "f"), 16)

    return span


def mark_id(names: tuple[str, ...]) -> int | None:
    """The ledger whose mark is at these names below the folder of marks; None if it is none."""
    *folders, last = names
    if len(folders) != len(_MARK_CUTS) or not all(map(_HEX.fullmatch, folders)):
        return None
    number = int("".join(folders), 16)
    return number if number <= ID_MAX and last == f"{MARK}{number:010d}" else None


def digit_range(prefix: str, after: str | None, begin: str = LEDGERS) -> tuple[int, int] | None:
    """The first and last id whose key, which begins with `begin`, has a prefix and comes after a key; None if none does."""
    if begin.startswith(prefix):
        low, high = 0, ID_MAX
    else:
        digits = prefix.removeprefix(begin)
        if digits == prefix or len(digits) > _DIGITS or not _is_number(digits):
            return None
        low, high = int(digits.ljust(_DIGITS, "0")), int(digits.ljust(_DIGITS, "9"))
    if after is not None and after >= begin:
        rest = after.removeprefix(begin)
        if rest == after:
            return None
        # The ids whose 19 digits sort after `rest`, which need not be digits at all.
        number = re.match(r"[0-9]*", rest, re.ASCII)
        head = number.group()[:_DIGITS] if number else ""
        tail = rest[len(head) :]
        if len(head) == _DIGITS:
            low = max(low, int(head) + 1)
        elif tail and tail[0] > "9":
            low = max(low, int(head.ljust(_DIGITS, "9")) + 1)
        else:
            low = max(low, int(head.ljust(_DIGITS, "0")))
    return (low, min(high, ID_MAX)) if low <= min(high, ID_MAX) else None


def _cut(digits: str, cuts: tuple[int, ...]) -> list[str]:
    pieces, at = [], 0
    for size in cuts:
        pieces.append(digits[at : at + size])
        at += size
    return pieces


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _bookie_id(name: str) -> str | None:
    """The name itself, if it is a bookie's."""
    try:
        return check_bookie_id(name)
    except MisuseError:
        return None


def _setting(name: str) -> str | None:
    """The name itself, if it is that of a setting of BookKeeper's auto-recovery."""
    return name if UNDERREPLICATION + name in {DISABLE, LOST_DELAY} else None


def _numbered(mark: str) -> tuple[Callable[[str], str | None], Callable[[str], str | None]]:
    """Names of znodes for keys of 19 digits, and back: the mark, then 10 digits or more."""

    def name(digits: str) -> str | None:
        if digits == SEQUENCE_ZEROS:  # ZooKeeper appends the other ten
            return mark
        if len(digits) != _DIGITS or not _is_number(digits) or int(digits) > ID_MAX:
            return None
        return f"{mark}{int(digits):010d}"

    def rest(child: str) -> str | None:
        digits = child.removeprefix(mark)
        if digits == child or not _is_number(digits) or len(digits) > _DIGITS or int(digits) > ID_MAX:
            return None
        return f"{int(digits):019d}" if child == f"{mark}{int(digits):010d}" else None

    return name, rest


def _meet(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
