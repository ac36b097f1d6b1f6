"""Records from a blocking source on their way into a writer: grouped, bounded, acknowledged, counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

from quire.cli.console.asking import can_ask
from quire.cli.console.output import Output, ProgressLine, say
from quire.cli.console.record_streams import BadInputError, InputRecord, size_of
from quire.core.errors import MisuseError, NotWritingError, OutcomeUnknownError, QuireError, WindowFullError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
    from pathlib import Path

R = TypeVar("R", bytes, bytes | InputRecord)
R_contra = TypeVar("R_contra", bytes, bytes | InputRecord, contravariant=True)
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
"""The reading thread runs at most so far ahead of the writer."""


class Appender(Protocol[R_contra]):
    """What a ledger's and a log's writer have in common."""

    def append_nowait(self, record: R_contra, /) -> asyncio.Future[int]:
        """Start one append; the future gives its id or offset."""
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
    """What became of the records of one append, as far as it is known.

    Attributes:
        confirmed: acknowledged records; `bytes` is what they have of values, keys and headers.
        first: the id or offset of the first one of them; `last` is that of the last one. None without any.
        unknown: records that were handed to the writer and are not known to be stored.
    """

    def __init__(self) -> None:
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

    def sentence(self, unit: str, place: str) -> str:
        """What is known, for a person: `unit` is the plural of what is counted, `place` the name of its number."""
        unit_of_one = unit[:-1] if unit != "entries" else "entry"
        text = f"Confirmed: {self.confirmed:,} {unit_of_one if self.confirmed == 1 else unit}"
        if self.last is not None:
            text += f", the last one at {place} {self.last:,}"
        if self.unknown:
            text += f"; unknown: {self.unknown:,}"
        return text + "."


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


@contextlib.contextmanager
def telling_how_far(tally: AppendTally, out: Output, unit: str, place: str, **ids: object) -> Iterator[None]:
    """What ends an append early says how far it came: in its sentence, and for programs in `ids`.

    Args:
        tally: what is known of the records.
        out: where it is said if the end is no error of ours, as Ctrl-C.
        unit: `records` or `entries`.
        place: `offset` or `entry`; programs find `confirmed`, `last_offset` or `last_entry`, and `unknown`.
        ids: what the append is about.
    """

    def facts() -> dict[str, object]:
        return {"confirmed": tally.confirmed, f"last_{place}": tally.last, "unknown": tally.unknown}

    try:
        yield
    except QuireError as error:
        if not tally.confirmed and not tally.unknown:
            error.ids.update(ids)
            raise
        text = f"{error.message.rstrip('.')}. {tally.sentence(unit, place)}"
        raise type(error)(text, **(error.ids | ids | facts())) from error
    except (KeyboardInterrupt, asyncio.CancelledError, OSError):
        out.note(json.dumps(ids | facts()) if out.as_json else tally.sentence(unit, place))
        raise


class _Group:
    """Records that were read together, with a future for each that the writer has taken."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.futures: list[asyncio.Future[int]] = []


def _retrieve(future: asyncio.Future[int]) -> None:
    if not future.cancelled():
        future.exception()


async def append_all(
    open_writer: Callable[[], Awaitable[Appender[R]]],
    records: Iterator[R],
    progress: ProgressLine,
    tally: AppendTally,
) -> None:
    """Append every record and wait until all of them are acknowledged; see `append_groups`.

    Args:
        open_writer: gives the writer, when the first record is there; it stays open.
        records: read on another thread.
        progress: counts what has been acknowledged.
        tally: counts as well.
    """
    await append_groups(open_writer, partial(in_groups, records), progress, tally)


async def append_groups(
    open_writer: Callable[[], Awaitable[Appender[R]]],
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
    writer: Appender[R] | None = None

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


async def _hand_over(writer: Appender[R], records: list[R], group: _Group) -> None:
    for record in records:
        while True:
            try:
                group.futures.append(writer.append_nowait(record))
                break
            except WindowFullError:
                await writer.drain()
            except NotWritingError:
                raise
            except MisuseError as error:
                raise BadInputError(error.message, **error.ids) from error  # as one that is too long
