"""Lists of keys of one moment, out of ZooKeeper's folders.

A walk over the folders says which keys the page should have, and which folders it looked into. One request then reads
all of these folders and values of one moment. If the walk over what it found says the same, the page is of that
moment. A key that appeared meanwhile is read by itself, and counts if it was not changed since that moment; otherwise
the page is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from kazoo.exceptions import NoNodeError
from kazoo.protocol.serialization import GetChildren, GetData

from quire.metadata.store import StoreBusyError, Versioned
from quire.metadata.zookeeper.paths import FOLDER_END, IdTree, KeyPaths, decode_part, digit_range
from quire.metadata.zookeeper.requests import MultiRead, Node
from quire.metadata.zookeeper.session import ZookeeperSession

ATTEMPTS_MAX: Final = 100
Found = dict[str, Node | None]


def versioned(node: Node) -> Versioned:
    """What callers of the store get. ZooKeeper counts versions from 0, which elsewhere means "none"."""
    return Versioned(node.data, node.stat.version + 1, node.stat.mzxid)


class _Unknown(Exception):  # noqa: N818 - not an error: the walk needs a folder that was not read yet
    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder


class _Walk:
    """Which keys a page has, according to folders that were read."""

    def __init__(self, paths: KeyPaths, prefix: str, after: str | None, limit: int) -> None:
        self._paths = paths
        self._prefix = prefix
        self._after = after
        self._limit = limit
        self._folders: dict[str, list[str]] = {}
        self.used: dict[str, None] = {}

    def page(self, folders: dict[str, list[str]]) -> list[str]:
        """The keys, ascending.

        Raises:
            _Unknown: a folder is needed that was not read.
        """
        self._folders = folders
        self.used = {}
        keys = [key for tree in self._paths.trees for key in self._numbered(tree)]
        for folder in self._paths.flat_folders:
            if folder.meets(self._prefix):
                rests = map(folder.rest, self._children(folder.path))
                keys += self._first(folder.begin + rest for rest in rests if rest is not None)
        keys += self._own()
        return sorted(keys)[: self._limit]

    def _children(self, folder: str) -> list[str]:
        self.used[folder] = None
        try:
            return self._folders[folder]
        except KeyError:
            raise _Unknown(folder) from None

    def _wanted(self, key: str) -> bool:
        return key.startswith(self._prefix) and (self._after is None or key > self._after)

    def _first(self, keys: Iterator[str]) -> list[str]:
        return sorted(key for key in keys if self._wanted(key))[: self._limit]

    # --- ledgers and their marks: ids ascend with the walk, so it ends with the page ----------------------------

    def _numbered(self, tree: IdTree) -> list[str]:
        span = digit_range(self._prefix, self._after, tree.begin)
        found: list[str] = []
        if span is not None:
            self._numbered_below(tree, (), *span, found)
        return found

    def _numbered_below(
        self, tree: IdTree, names: tuple[str, ...], low: int, high: int, found: list[str]
    ) -> None:
        spans = tree.children(names)
        assert spans is not None
        here = [
            (*span, child)
            for child in self._children("/".join((tree.root, *names)))
            if (span := spans(child)) is not None
        ]
        # Of ledgers: an id that has a short path (two digits in front) never has a long one (three) as well.
        for first, last, child in sorted(here):
            if len(found) >= self._limit:
                return
            if last < low or first > high:
                continue
            path = (*names, child)
            number = tree.number(path)
            if number is None:
                self._numbered_below(tree, path, low, high, found)
            else:
                found.append(f"{tree.begin}{number:019d}")

    # --- Quire's own tree -----------------------------------------------------------------------------------------

    def _own(self) -> list[str]:
        *folders, rest = self._prefix.split("/")
        return self._own_below(folders, rest)

    def _own_below(self, parts: list[str], rest: str) -> list[str]:
        """Keys in a folder, and in its folders, whose next part begins with `rest`."""
        found: list[str] = []
        begin = "".join(part + "/" for part in parts)
        for name in self._children(self._paths.folder(parts)):
            is_folder = name.endswith(FOLDER_END)
            part = decode_part(name.removesuffix(FOLDER_END))
            if not part.startswith(rest):
                continue
            if not is_folder:
                found.append(begin + part)
            elif self._may_follow(begin + part + "/"):
                found += self._own_below([*parts, part], "")
        return self._first(iter(found))

    def _may_follow(self, begin: str) -> bool:
        """Whether a key with this beginning can come after the last page."""
        return self._after is None or begin > self._after or self._after.startswith(begin)


class ZnodeTree:
    """Reads pages of keys, in the order of the other stores, from ZooKeeper's tree.

    Args:
        session: the session.
        paths: where keys are.
    """

    def __init__(self, session: ZookeeperSession, paths: KeyPaths) -> None:
        self._session = session
        self._paths = paths

    async def page(self, prefix: str, after: str | None, limit: int) -> list[tuple[str, Versioned]]:
        """At most `limit` keys with a prefix that come after a key, with their values, of one moment.

        Raises:
            StoreBusyError: they changed faster than they could be read.
            StoreAwayError: no response within `patience_ms`.
        """
        walk = _Walk(self._paths, prefix, after, limit)
        folders: dict[str, list[str]] = {}
        for _ in range(ATTEMPTS_MAX):
            keys = await self._walk(walk, folders)
            used, nodes = list(walk.used), {key: self._paths.path(key) for key in keys}
            (children, values), moment = await self._session.read(MultiRead(used, list(nodes.values())))
            folders = {folder: names or [] for folder, names in zip(used, children, strict=True)}
            found: Found = dict(zip(keys, values, strict=True))
            try:
                keys = walk.page(folders)
            except _Unknown:
                continue
            if await self._complete(keys, found, moment):
                return [(key, versioned(node)) for key in keys if (node := found[key]) is not None]
        raise StoreBusyError(
            f"the keys that begin with {prefix!r} changed {ATTEMPTS_MAX} times while they were read; try again",
            prefix=prefix,
        )

    async def _walk(self, walk: _Walk, folders: dict[str, list[str]]) -> list[str]:
        fresh = True
        while True:
            try:
                return walk.page(folders)
            except _Unknown as needed:
                try:
                    names, _ = await self._session.read(GetChildren(needed.folder, None), fresh=fresh)
                except NoNodeError:
                    names = []
                folders[needed.folder] = names
                fresh = False  # one connection never goes back

    async def _complete(self, keys: list[str], found: Found, moment: int) -> bool:
        """Read the values that are missing; whether all are as they were at that moment."""
        missing = [key for key in keys if key not in found]
        if any(found.get(key) is None for key in keys if key in found):
            return False
        answers = await asyncio.gather(
            *(self._session.read(GetData(self._paths.path(key), None), fresh=False) for key in missing),
            return_exceptions=True,
        )
        for key, answer in zip(missing, answers, strict=True):
            if isinstance(answer, NoNodeError):
                return False
            if isinstance(answer, BaseException):
                raise answer
            found[key] = Node(*answer[0])
            if answer[0][1].mzxid > moment:
                return False
        return True
