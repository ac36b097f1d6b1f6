"""Records from a blocking source on their way into a writer: grouped, bounded, acknowledged, counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar

from quire.cli.console.asking import can_ask
from quire.cli.console.output import Output, ProgressLine, say
from quire.cli.console.record_streams import BadInputError, InputRecord, size_of
from quire.core.errors import MisuseError, NotWritingError, OutcomeUnknownError, QuireError, WindowFullError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

R = TypeVar("R", bytes, bytes | InputRecord)
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""The reading thread runs at most so far ahead of the writer."""


class Appender(Protocol):
    """What a ledger's and a log's writer have in common."""

    def append_nowait(self, *record: Any, **_: Any) -> asyncio.Future[int]:
        """Start one append; the future gives its id or offset. A record that is more than a value has arguments for all of it."""
        ...

    async def drain(self) -> None:
        """Wait until everything that was started is acknowledged."""
        ...


async def in_groups(
    records: Iterator[R], failed: asyncio.Future[BaseException] | None = None
) -> AsyncIterator[list[R]]:
    """What `records` gives, in lists: as much as there is whenever the consumer is ready, nothing held back.

    The iterator runs on a thread of its own, because a pipe may have nothing to say for hours. That thread may still wait
    for input when the process ends, so `records` must not hold what the interpreter closes then, as `sys.stdin` is.

    Args:
        records: what to group.
        failed: its result is raised at once when it comes, whatever the input does.
    """
    loop = asyncio.get_running_loop()
    wake = asyncio.Event()
    if failed is not None:
        failed.add_done_callback(lambda _: wake.set())
    ready: deque[R] = deque()
    changed = threading.Condition()
    size = 0
    ended = False
    stopped = False
    failure: BaseException | None = None

    def read() -> None:
        nonlocal size, ended, failure
        try:
            for record in records:
                with changed:
                    while size > GROUP_BYTES_MAX and not stopped:
                        changed.wait()
                    if stopped:
                        return
                    if not ready:
                        loop.call_soon_threadsafe(wake.set)
                    ready.append(record)
                    size += size_of(record) + 64
        except BaseException as error:  # noqa: BLE001 -- raised again where the records are used
            failure = error
        ended = True
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(wake.set)

    threading.Thread(target=read, name="quire input", daemon=True).start()
    try:
        while True:
            await wake.wait()
            wake.clear()
            if failed is not None and failed.done():
                raise failed.result()
            over = ended
            with changed:
                group = list(ready)
                ready.clear()
                size = 0
                changed.notify()
            if group:
                yield group
            if over:
                break
    finally:
        with changed:
            stopped = True
            changed.notify()
    if failure is not None:
        raise failure


class AppendTally:
    """What became of the records of one append, as far as it is known, and how it is said.

    Args:
        unit: `records` or `entries`.
        place: `offset` or `entry`; programs find `confirmed`, `last_offset` or `last_entry`, and `unknown`.
        ids: what the append is about, as `log="x"`.

    Attributes:
        confirmed: acknowledged records; `bytes` is what they have of values, keys and headers.
        first: the id or offset of the first one of them; `last` is that of the last one. None without any.
        unknown: records that were handed to the writer and are not known to be stored.
    """

    def __init__(self, unit: str, place: str, **ids: object) -> None:
        self.unit, self.place, self.ids = unit, place, ids
        self.confirmed = 0
        self.bytes = 0
        self.first: int | None = None
        self.last: int | None = None
        self.unknown = 0
        self._groups: deque[_Group] = deque()

    def begin(self, group: _Group) -> None:
        """These records are handed to the writer now."""
        self._groups.append(group)

    def confirm(self, group: _Group, progress: ProgressLine) -> None:
        """The oldest group is acknowledged as a whole; after `settle` it is counted already."""
        if not self._groups or self._groups[0] is not group:
            return
        self._groups.popleft()
        size = sum(group.sizes)
        self._count(len(group.futures), size, group.futures[0].result(), group.futures[-1].result())
        progress.advance(len(group.futures), size)

    def settle(self) -> OutcomeUnknownError | None:
        """Nothing more is appended: look at what is left, record by record.

        Returns:
            An error that leaves it unknown whether a record is stored, if there is one.
        """
        found: OutcomeUnknownError | None = None
        groups, self._groups = self._groups, deque()
        for group in groups:
            for future, size in zip(group.futures, group.sizes, strict=False):
                if not future.done():
                    self.unknown += 1
                    future.add_done_callback(_retrieve)
                elif future.cancelled():
                    self.unknown += 1
                elif (error := future.exception()) is None:
                    self._count(1, size, future.result(), future.result())
                elif isinstance(error, OutcomeUnknownError):
                    self.unknown += 1
                    found = error
        return found

    def _count(self, count: int, size: int, first: int, last: int) -> None:
        self.confirmed += count
        self.bytes += size
        self.first = first if self.first is None else self.first
        self.last = last

    @property
    def sentence(self) -> str:
        """What is known, for a person."""
        unit_of_one = self.unit[:-1] if self.unit != "entries" else "entry"
        text = f"Confirmed: {self.confirmed:,} {unit_of_one if self.confirmed == 1 else self.unit}"
        if self.last is not None:
            text += f", the last one at {self.place} {self.last:,}"
        if self.unknown:
            text += f"; unknown: {self.unknown:,}"
        return text + "."

    @contextlib.contextmanager
    def telling(self, out: Output) -> Iterator[None]:
        """What ends the block early says how far the append came: in its sentence, and for programs in `ids`.

        Args:
            out: where it is said if the end is no error of ours, as Ctrl-C.
        """
        try:
            yield
        except (QuireError, KeyboardInterrupt, asyncio.CancelledError, OSError) as error:
            far = {"confirmed": self.confirmed, f"last_{self.place}": self.last, "unknown": self.unknown}
            if not isinstance(error, QuireError):
                out.note(json.dumps(self.ids | far) if out.as_json else self.sentence)
                raise
            if not self.confirmed and not self.unknown:
                error.ids.update(self.ids)
                raise
            text = f"{error.message.rstrip('.')}. {self.sentence}"
            raise type(error)(text, **(error.ids | self.ids | far)) from error

    async def append(
        self,
        out: Output,
        opens: Callable[[contextlib.AsyncExitStack], Awaitable[Appender]],
        groups: Callable[[asyncio.Future[BaseException]], AsyncIterator[list[R]]],
        *,
        typed: bool = False,
        total: int | None = None,
    ) -> float:
        """Append every record, as `append_groups`, and say how far it is, and how far it came.

        Args:
            out: where it is said.
            opens: gives the writer; what it enters into the stack is closed in the end.
            groups: the records.
            typed: a person types them.
            total: how many there are, if that is known.

        Returns:
            How many seconds it took.
        """
        what = " ".join(f"{name.removesuffix('_id')} {which}" for name, which in self.ids.items())
        progress = (
            TerminalInputProgress(what, None, self.unit) if typed else out.progress(what, total, self.unit)
        )
        with self.telling(out):
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(progress)
                await append_groups(partial(opens, stack), groups, progress, self)
        return progress.seconds


class TerminalInputProgress(ProgressLine):
    """Counts, and shows nothing but how to end: a person types at this terminal."""

    def __enter__(self) -> Self:
        say(f"Reading {self.unit} from this terminal until Ctrl-D.")
        return self

    def advance(self, count: int, size: int = 0) -> None:
        """`count` more units, `size` more bytes, are done."""
        self.count += count
        self.bytes += size


def is_typed_by_hand(files: Sequence[Path] | None) -> bool:
    """Whether a person types what is appended: standard input is a terminal, and one of the inputs."""
    return can_ask() and (not files or any(str(file) == "-" for file in files))


class _Group:
    """Records that were read together, with a future for each that the writer has taken."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.futures: list[asyncio.Future[int]] = []


def _retrieve(future: asyncio.Future[int]) -> None:
    if not future.cancelled():
        future.exception()


async def append_groups(
    open_writer: Callable[[], Awaitable[Appender]],
    groups: Callable[[asyncio.Future[BaseException]], AsyncIterator[list[R]]],
    progress: ProgressLine,
    tally: AppendTally,
) -> None:
    """Append every record and wait until all of them are acknowledged.

    Args:
        open_writer: gives the writer, when the first record is there; it stays open.
        groups: gives the records in lists, none empty; ends when the future that it is called with has a result.
        progress: counts what has been acknowledged.
        tally: counts as well; when this raises, it has what is known of every record.

    Raises:
        OutcomeUnknownError: it is unknown whether some records are stored; raised without waiting for the input.
        QuireError: an append failed and nothing is unknown, or the input is wrong: what lay before is confirmed then.
    """
    failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    writer: Appender | None = None

    def ended(group: _Group, last: asyncio.Future[int]) -> None:
        if last.cancelled():
            return
        error = last.exception()
        if error is None:
            tally.confirm(group, progress)
        elif not failed.done():
            failed.set_result(error)

    try:
        try:
            async for records_read in groups(failed):
                if writer is None:
                    writer = await open_writer()
                group = _Group([size_of(record) for record in records_read])
                tally.begin(group)
                await _hand_over(writer, records_read, group)
                group.futures[-1].add_done_callback(partial(ended, group))
        except (QuireError, OSError):
            if writer is not None and not failed.done():
                await writer.drain()  # the input is wrong: what lay before it is stored
            raise
        if writer is not None:
            await writer.drain()
            await asyncio.sleep(0)  # the last group is counted by its callback
            tally.settle()
    except BaseException as error:
        unknown = tally.settle()
        if (
            unknown is not None
            and not isinstance(error, OutcomeUnknownError)
            and isinstance(error, Exception)
        ):
            raise unknown from error
        raise


async def _hand_over(writer: Appender, records: Sequence[bytes | InputRecord], group: _Group) -> None:
    for record in records:
        parts = record if isinstance(record, InputRecord) else (record,)
        while True:
            try:
                group.futures.append(writer.append_nowait(*parts))
                break
            except WindowFullError:
                await writer.drain()
            except NotWritingError:
                raise
            except MisuseError as error:
                raise BadInputError(error.message, **error.ids) from error  # as one that is too long
