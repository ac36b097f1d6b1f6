"""Ledger ids from ZooKeeper, as Java draws them, so that its clients and ours never collide.

An id is the number that ZooKeeper gives a sequential znode, which is removed again. When these numbers end at
2147483646, `idgen-long` is made, and a client that finds it takes ids from there: the greatest of its children
`HOB-<number>` gives the high 32 bits, a sequential znode in it the low ones. Ids may be skipped: so the next short one
is drawn ahead, while the ledger of the last one is made, and used znodes are removed many at one time. One that is
drawn ahead is only issued if it lies above the number that a raise of the ids wrote down.

Ids are raised by drawing the numbers in between, which holds for Java's clients too. Over a leap of more than
`SHORT_LEAP_MAX` the ids go on as long ones instead: Java's clients that are running learn of that when they start again.

Source: BookKeeper source, `ZkLedgerIdGenerator`, `LongZkLedgerIdGenerator`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create, Delete, Exists, GetChildren, Transaction

from quire.core.errors import CorruptMetadataError, MetadataUnknownError, MisuseError, RefusedError
from quire.core.ids import LedgerId
from quire.metadata.retries import Attempts, settled
from quire.metadata.zookeeper.nodes import ANY_VERSION, EPHEMERAL, SEQUENTIAL, Nodes
from quire.metadata.zookeeper.options import ZookeeperLayout
from quire.metadata.zookeeper.paths import SHORT_ID_END
from quire.metadata.zookeeper.session import LOST, ZookeeperSession

ID_NODE: Final = "ID-"
HIGH_BITS_NODE: Final = "HOB-"
HIGH_BITS_KEPT: Final = 3
HIGH_BITS_END: Final = 2**31
REMOVED_AT_ONCE: Final = 16
"""How many numbers are drawn before their znodes are removed; the rest ends with the session."""
SHORT_LEAP_MAX: Final = 1_000_000
"""Most numbers that are drawn to raise short ids."""
DRAWN_AT_ONCE: Final = 100
_LOG: Final = logging.getLogger(__name__)


class ZookeeperLedgerIds:
    """The id generator of one cluster.

    Args:
        session: the session.
        nodes: znodes.
        layout: the flat one has another place for its numbers, and no long ids.
    """

    def __init__(self, session: ZookeeperSession, nodes: Nodes, layout: ZookeeperLayout) -> None:
        self._session = session
        self._nodes = nodes
        self._layout = layout
        self._short = (
            f"{nodes.root}/{ID_NODE}" if layout is ZookeeperLayout.FLAT else f"{nodes.root}/idgen/{ID_NODE}"
        )
        self._long = f"{nodes.root}/idgen-long"
        self._is_long: bool | None = None
        self._ahead: asyncio.Future[Any] | None = None
        self._used: list[str] = []
        self._removing: set[asyncio.Future[object]] = set()

    @property
    def looks_for_floor(self) -> bool:
        """Whether ids that are ready, or short ones at all, may be below the number that a raise wrote down."""
        return self._is_long is False

    async def next(self, floor: int) -> LedgerId:
        """An id that was never issued before.

        Args:
            floor: the number that a raise of the ids wrote down; -1: none, or it is not looked for.

        Raises:
            MisuseError: the layout has no more ids.
            MetadataUnknownError: the store kept losing the connection.
        """
        if self._is_long is None:
            stat, _ = await self._session.read(Exists(self._long, None))
            self._is_long = stat is not None and self._takes_long
        if floor >= SHORT_ID_END and self._takes_long:
            self._is_long = True
        if not self._is_long:
            number = await self._short_number(floor)
            if number is not None:
                asyncio.get_running_loop().call_soon(self._draw_ahead)
                return LedgerId(number)
            if not self._takes_long:
                raise MisuseError(
                    f"the layout {self._layout.value} has no more ledger ids after {SHORT_ID_END - 1}"
                )
            self._is_long = True
        return await self._long_id()

    @property
    def _takes_long(self) -> bool:
        return self._layout in {ZookeeperLayout.HIERARCHICAL, ZookeeperLayout.LONG_HIERARCHICAL}

    async def _short_number(self, floor: int) -> int | None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await self._session.ready()
            try:
                async with asyncio.timeout(self._session.address.options.patience_ms / 1000):
                    path, _ = await ahead
            except TimeoutError:
                raise self._session.away() from None
            except KazooException:
                pass  # lost with a connection: that number is skipped
            else:
                number = self._number_of(str(path), self._short)
                if number is None or number > floor:
                    return number
        return await self._number(self._short)

    def _draw_ahead(self) -> None:
        """Draw the number of the next ledger, together with what was just sent."""
        if self._ahead is None and self._session.is_ready:
            kind = EPHEMERAL | SEQUENTIAL
            self._ahead = self._session.submit(Create(self._short, b"", self._session.acl, kind))
            self._ahead.add_done_callback(self._drawn_ahead)

    def _drawn_ahead(self, drawn: asyncio.Future[Any]) -> None:
        if not drawn.cancelled() and drawn.exception() is None:
            self._remove_later(str(drawn.result()[0]))

    async def _number(self, prefix: str) -> int | None:
        """The next number of a sequence; None when it has no more."""

        async def once(_: bool) -> str:
            return await self._nodes.create(prefix, b"", EPHEMERAL | SEQUENTIAL)

        # A number whose response is lost is skipped; its znode ends with the session.
        path = await settled(once, "a ledger id", "drawn")
        self._remove_later(path)
        return self._number_of(path, prefix)

    @staticmethod
    def _number_of(path: str, prefix: str) -> int | None:
        digits = path.removeprefix(prefix)
        if not digits.removeprefix("-").isdecimal():
            raise CorruptMetadataError(f"ZooKeeper numbered {prefix} as {path}", path=path)
        number = int(digits)
        return number if 0 <= number < SHORT_ID_END else None

    def _remove_later(self, path: str) -> None:
        """It is not awaited: if it fails, the znodes end with the session."""
        self._used.append(path)
        if len(self._used) >= REMOVED_AT_ONCE:
            used, self._used = self._used, []
            self._remove(used)

    def _remove(self, used: list[str]) -> None:
        removal = self._session.submit(Transaction([Delete(one, ANY_VERSION) for one in used]))
        self._removing.add(removal)
        removal.add_done_callback(self._removed)

    def _removed(self, removal: asyncio.Future[object]) -> None:
        self._removing.discard(removal)
        if not removal.cancelled():
            removal.exception()

    # --- raising -------------------------------------------------------------------------------------------------

    async def skip(self, above: int) -> int:
        """Have all numbers that are drawn later be above an id.

        Returns:
            What to write down for those who have numbers ready: the id, or more if ids go on as long ones.

        Raises:
            RefusedError: the layout has no ids there.
            MetadataUnknownError: the store kept losing the connection.
        """
        stat, _ = await self._session.read(Exists(self._long, None))
        if (stat is None or not self._takes_long) and await self._skip_short(above):
            return above
        if not self._takes_long:
            raise RefusedError(
                f"ledger ids cannot be raised above {above}: the layout {self._layout.value} ends at {SHORT_ID_END - 1}, and"
                f" at most {SHORT_LEAP_MAX} ids are left out; an id that is in use is refused when a ledger is made of it",
                above=above,
            )
        if stat is None:
            _LOG.warning(
                "ledger ids at %s go on above %d, as 64-bit ids: %d is too far away to draw the numbers up to it; start"
                " Java's clients again, until then they draw ids that may be in use",
                self._nodes.root,
                1 << 32,
                above,
            )
        above = max(above, SHORT_ID_END)
        await self._skip_long(above)
        self._is_long = True
        return above

    async def _skip_short(self, above: int) -> bool:
        """Draw numbers up to an id; False if that is too far, or there are none any more."""
        number = await self._number(self._short)
        if number is None or above >= SHORT_ID_END - 1 or above - number > SHORT_LEAP_MAX:
            return False
        while number is not None and number <= above:
            number = await self._last_of(min(above - number + 1, DRAWN_AT_ONCE))
        return number is not None

    async def _last_of(self, count: int) -> int | None:
        """Draw this many short numbers at once; the last of them, None when there are no more."""
        request = Create(self._short, b"", self._session.acl, EPHEMERAL | SEQUENTIAL)

        async def once(_: bool) -> list[Any]:
            drawn = f"{count} numbers were drawn"
            return list(await self._session.change(Transaction([request] * count), drawn))

        made = await settled(once, f"{count} ledger ids", "drawn")
        for answer in made:
            if isinstance(answer, KazooException):
                raise answer
        paths = [str(path) for path in made]
        self._remove(paths)
        return self._number_of(paths[-1], self._short)

    async def _skip_long(self, above: int) -> None:
        high, low = above >> 32, above & 0xFFFF_FFFF
        async for _ in Attempts(f"ledger ids go on above {above}"):
            if (current := await self._high_bits()) > high:
                return
            if current == high:
                number = await self._number(f"{self._high_path(high)}/{ID_NODE}")
                if number is not None and number > low:
                    return
            await self._make_high_bits(high + 1)

    # --- long ids ------------------------------------------------------------------------------------------------

    async def _long_id(self) -> LedgerId:
        async for _ in Attempts("a ledger id was drawn"):
            high = await self._high_bits()
            number = await self._number(f"{self._high_path(high)}/{ID_NODE}")
            if number is not None:
                return LedgerId(high << 32 | number)
            await self._make_high_bits(high + 1)
        raise AssertionError  # attempts end with an error

    def _high_path(self, high: int) -> str:
        return f"{self._long}/{HIGH_BITS_NODE}{high:010d}"

    async def _high_bits(self) -> int:
        try:
            names, _ = await self._session.read(GetChildren(self._long, None))
        except NoNodeError:
            names = []
        found = self._numbers(names)
        if found:
            return found[-1]
        await self._make_high_bits(1)
        return 1

    @staticmethod
    def _numbers(names: list[str]) -> list[int]:
        digits = [name.removeprefix(HIGH_BITS_NODE) for name in names if name.startswith(HIGH_BITS_NODE)]
        return sorted(int(text) for text in digits if text.isdecimal())

    async def _make_high_bits(self, high: int) -> None:
        if high >= HIGH_BITS_END:
            raise MisuseError("this cluster has no more ledger ids")
        with suppress(
            NodeExistsError, MetadataUnknownError
        ):  # whichever client made it, the next read shows it
            await self._nodes.create(self._high_path(high), b"")
        names, _ = await self._session.read(GetChildren(self._long, None))
        for old in self._numbers(names)[:-HIGH_BITS_KEPT]:
            with suppress(KazooException, MetadataUnknownError, *LOST):
                await self._session.change(Delete(self._high_path(old), ANY_VERSION), "old bits were removed")
