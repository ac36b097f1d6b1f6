"""The blocking client's mechanism: one loop thread, prefetching iterators, submissions, forks, Ctrl-C."""

import asyncio
import concurrent.futures
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from quire.blocking import loop as loops
from quire.blocking import prefetch as prefetching
from quire.blocking.handles import Appending, BlockingHandle, appended, awaited, iterated
from quire.blocking.ledgers import BlockingLedgerWriter
from quire.blocking.logs import BlockingLogWriter
from quire.core.errors import LedgerFencedError, MisuseError, NotWritingError, WindowFullError


class Counter:
    def __init__(self) -> None:
        self.produced = 0
        self.ended = threading.Event()
        self.started = threading.Event()
        self.cancelled = threading.Event()

    async def add(self, left: int, *, right: int = 1) -> int:
        """Add two numbers."""
        await asyncio.sleep(0)
        return left + right

    async def fail(self) -> None:
        raise LedgerFencedError("ledger 7 was fenced", ledger_id=7)

    async def count(self, end: int, size: int = 0):
        try:
            for number in range(end):
                self.produced = number + 1
                if number % 10 == 0:
                    await asyncio.sleep(0)
                yield SimpleNamespace(number=number, payload=bytes(size))
        finally:
            self.ended.set()

    async def break_off(self):
        yield SimpleNamespace(number=0)
        raise LedgerFencedError("in the middle")

    async def never(self):
        self.started.set()
        await asyncio.Event().wait()
        yield SimpleNamespace(number=0)

    async def hang(self) -> None:
        try:
            self.started.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class BlockingCounter(BlockingHandle[Counter]):
    add = awaited(Counter.add)
    fail = awaited(Counter.fail)
    hang = awaited(Counter.hang)
    count = iterated(Counter.count)
    break_off = iterated(Counter.break_off)
    never = iterated(Counter.never)


@pytest.fixture
def counter() -> BlockingCounter:
    return BlockingCounter(Counter(), loops.current())


def test_calls_keep_signature_documentation_result_and_errors(counter: BlockingCounter) -> None:
    assert counter.add(1, right=2) == 3
    assert inspect.getdoc(counter.add) == "Add two numbers."
    assert list(inspect.signature(counter.add).parameters) == ["left", "right"]
    with pytest.raises(LedgerFencedError, match="ledger 7") as caught:
        counter.fail()
    assert caught.value.ids == {"ledger_id": 7}


def test_whom_a_writer_waits_for_is_looked_up_where_that_changes() -> None:
    class Ledger:
        @property
        def waits_for(self) -> tuple[str, ...]:
            return (threading.current_thread().name,)

    of_ledger: Any = SimpleNamespace(_machine=Ledger(), _outgoing=SimpleNamespace(leave_bundles=lambda: None))
    of_log: Any = SimpleNamespace(_sender=Ledger())
    for inner in (of_ledger, of_log):
        inner.append_nowait = inner.drain = None
    assert BlockingLedgerWriter(of_ledger, loops.current()).waits_for == ("quire.blocking",)
    assert BlockingLogWriter(of_log, loops.current()).waits_for == ("quire.blocking",)


def test_one_thread_serves_all_callers(counter: BlockingCounter) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(counter.add, range(100))) == list(range(1, 101))
    assert loops.current() is loops.current()
    assert [thread.name for thread in threading.enumerate()].count("quire.blocking") == 1


def test_iteration_gives_everything_in_order_and_then_ends(counter: BlockingCounter) -> None:
    assert [item.number for item in counter.count(5000)] == list(range(5000))
    items = counter.count(2)
    assert [next(items).number, next(items).number] == [0, 1]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(items)


def test_iteration_does_not_run_further_ahead_than_its_bound(counter: BlockingCounter) -> None:
    size = 64 * 1024
    items = counter.count(1_000_000, size)
    next(items)
    bound = prefetching.PREFETCH_BYTES_MAX // size + 2
    for _ in range(1000):
        next(items)
        assert counter._inner.produced <= items_seen(items) + bound
    items.close()
    assert counter._inner.ended.wait(10)


def items_seen(items) -> int:
    return items._pump._consumed_bytes // (64 * 1024)


def test_an_error_arrives_after_the_items_before_it(counter: BlockingCounter) -> None:
    items = counter.break_off()
    assert next(items).number == 0
    for _ in range(2):
        with pytest.raises(LedgerFencedError, match="in the middle"):
            next(items)


def test_dropping_an_iterator_ends_its_source(counter: BlockingCounter) -> None:
    items = counter.count(10_000_000, 1024)
    next(items)
    del items
    assert counter._inner.ended.wait(10)


def outcome(items: Iterator[Any], seen: list[int]) -> str:
    try:
        seen.extend(item.number for item in items)
    except LedgerFencedError as error:
        return error.message
    return "at its end"


@pytest.mark.parametrize(
    ("source", "count", "end"), [("count", 5000, "at its end"), ("break_off", 1, "in the middle")]
)
def test_an_iterator_that_threads_share_ends_for_all_of_them(
    counter: BlockingCounter, source: str, count: int, end: str
) -> None:
    items = counter.count(count) if source == "count" else counter.break_off()
    seen: list[int] = []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        ends = [pool.submit(outcome, items, seen) for _ in range(8)]
        assert {each.result(30) for each in ends} == {end}
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("began", [True, False])
def test_closing_an_iterator_ends_it_for_the_threads_that_wait_for_an_item(
    counter: BlockingCounter, began: bool
) -> None:
    items = counter.never()
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(list, items) for _ in range(3)]
        if began:
            assert counter._inner.started.wait(10)
        items.close()
        assert [each.result(10) for each in waiting] == [[], [], []]


def test_calls_from_the_loop_itself_are_refused(counter: BlockingCounter) -> None:
    async def inside() -> None:
        counter.add(1)

    with pytest.raises(MisuseError, match="own event loop"):
        loops.current().run(inside)


def test_a_forked_child_is_told_to_connect_again_and_can(counter: BlockingCounter) -> None:
    assert counter.add(1) == 2
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = b"failed"
        try:
            try:
                counter.add(1)
            except MisuseError:
                fresh = BlockingCounter(Counter(), loops.current())
                status = b"ok" if fresh.add(2) == 3 else status
        finally:
            os.write(writer, status)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert answer.read() == b"ok"
    os.waitpid(child, 0)
    assert counter.add(1) == 2


INTERRUPTED = """
import sys, threading
sys.path.insert(0, {tests!r})
from test_blocking import BlockingCounter, Counter
from quire.blocking import loop
counter = BlockingCounter(Counter(), loop.current())
threading.Thread(target=lambda: counter._inner.started.wait() and print("ready", flush=True)).start()
try:
    counter.hang()
except KeyboardInterrupt:
    print("interrupted", counter._inner.cancelled.wait(10), counter.add(1), flush=True)
"""


def test_ctrl_c_cancels_what_is_waited_for_and_the_client_goes_on() -> None:
    script = INTERRUPTED.format(tests=os.path.dirname(__file__))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted True 2\n"
        assert process.wait(30) == 0


class Writer:
    """Takes `window` appends, then says that it is full until drained."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.futures: list[asyncio.Future[int]] = []
        self.count = 0
        self.closed = False
        self.drains = 0

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        if self.closed:
            raise NotWritingError("closed")
        if len(self.futures) >= self.window:
            raise WindowFullError("full")
        future = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        self.count += 1
        return future

    async def drain(self) -> None:
        self.drains += 1
        await asyncio.sleep(0)
        first = self.count - len(self.futures)
        for number, future in enumerate(self.futures):
            future.set_result(first + number)
        self.futures.clear()

    async def close(self, *, at: str = "write_quorum") -> None:
        if at == "write_quorum":
            await self.drain()
        self.closed = True

    async def abandon(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error) -> None:
        await self.close()


class SlowWriter(Writer):
    """Has room for one entry, and more when `gate` is open."""

    def __init__(self) -> None:
        super().__init__(1)
        self.taken: list[bytes] = []
        self.appending = threading.Event()
        self.gate = asyncio.Event()

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        future = super().append_nowait(payload)
        self.taken.append(payload)
        return future

    async def append(self, payload: bytes) -> int:
        """Append, whether there is room or not."""
        self.taken.append(payload)
        self.appending.set()
        return len(self.taken) - 1

    async def drain(self) -> None:
        await self.gate.wait()
        await super().drain()


class BlockingWriter(Appending[Writer]):
    append = appended(SlowWriter.append)

    def append_nowait(self, payload: bytes) -> concurrent.futures.Future[int]:
        return self._submissions.submit(len(payload), (payload,), {})


def test_submissions_complete_in_order_beyond_the_window() -> None:
    with BlockingWriter(Writer(100), loops.current()) as writer:
        futures = [writer.append_nowait(b"x") for _ in range(5000)]
        writer.drain()
        assert [future.result(0) for future in futures] == list(range(5000))
        last = writer.append_nowait(b"y")
    assert last.result(0) == 5000
    assert writer._inner.closed
    assert writer._inner.drains >= 50


def test_an_append_goes_behind_what_was_submitted_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = SlowWriter()
    writer = BlockingWriter(inner, loops.current())
    waits = writer._submissions.taken

    async def taken() -> None:
        inner.appending.set()
        await waits()

    monkeypatch.setattr(writer._submissions, "taken", taken)
    futures = [writer.append_nowait(b"%d" % number) for number in range(2)]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        appending = pool.submit(writer.append, b"2")
        assert inner.appending.wait(10)
        loops.current().loop.call_soon_threadsafe(inner.gate.set)
        assert appending.result(10) == 2
    assert futures[0].result(10) == 0
    assert inner.taken == [b"0", b"1", b"2"]


def test_a_close_at_the_ack_quorum_waits_for_no_room() -> None:
    inner = SlowWriter()
    writer = BlockingWriter(inner, loops.current())
    futures = [writer.append_nowait(b"%d" % number) for number in range(2)]
    writer.close(at="ack_quorum")
    assert inner.closed
    loops.current().loop.call_soon_threadsafe(inner.gate.set)
    with pytest.raises(NotWritingError):
        futures[1].result(10)


def test_a_buffer_may_be_filled_anew_once_its_bytes_were_submitted() -> None:
    inner = SlowWriter()
    writer = BlockingLedgerWriter(cast("Any", inner), loops.current())
    buffer = bytearray(b"0")
    writer.append_nowait(buffer)
    buffer[:] = b"1"
    writer.append_nowait(memoryview(buffer))
    buffer[:] = b"2"
    loops.current().loop.call_soon_threadsafe(inner.gate.set)
    writer.drain()
    assert inner.taken == [b"0", b"1"]


def test_large_submissions_wait_for_the_loop() -> None:
    with BlockingWriter(Writer(4), loops.current()) as writer:
        payload = bytes(1024 * 1024)
        futures = [writer.append_nowait(payload) for _ in range(64)]
        assert writer._submissions._pending_bytes <= 17 * 1024 * 1024
    assert [future.result(0) for future in futures] == list(range(64))


def test_an_append_after_the_end_fails_in_its_future() -> None:
    writer = BlockingWriter(Writer(4), loops.current())
    writer.abandon()
    with pytest.raises(NotWritingError):
        writer.append_nowait(b"x").result(10)
