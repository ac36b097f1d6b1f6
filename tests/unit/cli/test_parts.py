"""The command line's parts: records, histogram, pictures, errors, options."""

import asyncio
import io
import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.cli import bench
from quire.cli.console import failures, output, picture
from quire.cli.console.feed import AppendTally, append_groups, in_groups
from quire.cli.console.histogram import Histogram, human_ns
from quire.cli.console.options import cluster_uri, host_and_port
from quire.cli.console.output import Output, ProgressLine, human_bytes, payload_facts, rate_text
from quire.cli.console.record_streams import (
    RECORD_BYTES_MAX,
    BadInputError,
    read_delimited,
    read_lines,
    read_records,
    write_record,
)
from quire.core.errors import (
    LedgerFencedError,
    MisuseError,
    NoClusterError,
    NoSuchLedgerError,
    WindowFullError,
)
from quire.core.log.list import ItemLocation, ItemState
from quire.log.records import ItemDescription
from quire.wire import bookkeeper


@given(st.lists(st.binary(max_size=50)))
def test_delimited_records_come_back(records: list[bytes]) -> None:
    stream = io.BytesIO()
    for record in records:
        write_record(stream, record, delimited=True)
    stream.seek(0)
    assert list(read_delimited(stream, "x")) == records


@given(st.lists(st.binary(max_size=50).filter(lambda record: b"\n" not in record)))
def test_lines_come_back(records: list[bytes]) -> None:
    stream = io.BytesIO()
    for record in records:
        write_record(stream, record, delimited=False)
    stream.seek(0)
    assert list(read_lines(stream, "x")) == records


def test_files_are_read_in_order_and_the_last_line_feed_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\r\n\n3")
    (tmp_path / "b").write_bytes(b"4\n")
    records = read_records([tmp_path / "a", tmp_path / "b"], delimited=False)
    assert list(records) == [b"1", b"2\r", b"", b"3", b"4"]


def test_a_record_may_be_as_long_as_a_frame():
    """The number stands twice: the commands start without the codecs."""
    assert RECORD_BYTES_MAX == bookkeeper.FRAME_BYTES_MAX


@pytest.mark.parametrize("data", [b"\0\0", b"\0\0\0\x05four", (RECORD_BYTES_MAX + 1).to_bytes(4, "big")])
def test_input_that_is_no_record_is_named(data: bytes) -> None:
    with pytest.raises(BadInputError, match="Record 2 of input"):
        list(read_delimited(io.BytesIO(b"\0\0\0\x01x" + data), "input"))


def test_a_line_that_is_too_long_is_named() -> None:
    assert list(read_lines(io.BytesIO(b"x" * RECORD_BYTES_MAX + b"\n"), "input")) == [b"x" * RECORD_BYTES_MAX]
    with pytest.raises(BadInputError, match="Line 2 of input"):
        list(read_lines(io.BytesIO(b"short\n" + b"x" * (RECORD_BYTES_MAX + 1) + b"\n"), "input"))


@given(st.lists(st.integers(1, 10**11), min_size=1, max_size=300), st.floats(0, 100))
def test_percentiles_are_right_within_a_bucket(durations: list[int], percent: float) -> None:
    histogram = Histogram()
    for duration in durations:
        histogram.add(duration)
    exact = sorted(durations)[max(0, -(-len(durations) * percent // 100).__int__() - 1)]
    assert exact * 0.999 <= histogram.percentile_ns(percent) + 1
    assert histogram.percentile_ns(percent) <= exact * 2 ** (1 / 16) + 1
    assert histogram.facts()["count"] == len(durations)
    assert histogram.draw().count("\n") < 160


def test_a_histogram_says_its_figures_in_words_and_units() -> None:
    histogram = Histogram()
    histogram.add(2_000_000, 2)
    assert histogram.sentence() == (
        "From the append to its acknowledgement: 2 ms on average, 50 % within 2 ms, 90 % within 2 ms, 99 % within 2 ms, "
        "99.9 % within 2 ms, the slowest 2 ms."
    )


def test_a_rate_takes_a_hundred_things_and_a_second() -> None:
    assert rate_text(2, 30.0, "records") == rate_text(5_000, 0.9, "records") == ""
    assert rate_text(5_000, 2.0, "records") == " (2,500 records/s)"


def test_an_empty_histogram_has_words_too() -> None:
    assert Histogram().draw() == "no durations"
    assert Histogram().sentence() == "No entry was acknowledged."
    assert Histogram().percentile_ns(99) == 0


def test_sizes_and_durations_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 2**30)] == ["0 B", "1023 B", "1.5 KiB", "1.0 GiB"]
    assert [human_ns(n) for n in (5, 1.25e6, 3e9)] == ["5 ns", "1.25 ms", "3 s"]
    assert payload_facts("value", b"text") == {"value": "text"}
    assert payload_facts("value", b"\xff") == {"value_base64": "/w=="}
    assert payload_facts("key", None) == {"key": None}


def test_fragments_are_drawn_with_slots_and_what_is_known_of_bookies() -> None:
    fragments = [
        picture.FragmentFacts(0, 999, ("a", "b", "c")),
        picture.FragmentFacts(1000, None, ("a", "d", "c")),
    ]
    assert picture.draw_fragments(fragments, {"a": "up", "c": "up", "d": "read-only"}) == [
        "  entries    b1   b2   b3   b4",
        "  0 .. 999  [0]  [1]  [2]   · ",
        "  1,000 ..  [0]   ·   [2]  [1]",
        "",
        "  b1 = a  up",
        "  b2 = b  not registered",
        "  b3 = c  up",
        "  b4 = d  read-only",
    ]


def test_write_sets_are_drawn_per_stripe() -> None:
    assert picture.draw_write_sets(3, 3, 2) == ["  every entry is in all 3 slots; 2 of them make it durable"]
    assert picture.draw_write_sets(4, 2, 1)[1:] == [
        "           0   [0] [1]  ·   · ",
        "           1    ·  [1] [2]  · ",
        "           2    ·   ·  [2] [3]",
        "           3   [0]  ·   ·  [3]",
    ]


def test_many_fragments_and_items_are_cut_in_the_middle() -> None:
    fragments = [picture.FragmentFacts(n, n, ("a",)) for n in range(100)]
    assert any("(60 more fragments)" in line for line in picture.draw_fragments(fragments, {}))
    items = [item_of(ledger_id) for ledger_id in range(100)]
    assert any("(60 more ledgers)" in line for line in picture.draw_items(items, 0))


def item_of(ledger_id: int) -> ItemDescription:
    times, open_ = (None, None), (ItemState.OPEN, ItemLocation.BOOKIES)
    return ItemDescription(ledger_id, 0, ledger_id, ledger_id + 1, 1, 1, *times, *open_, 3, "batch1", 0)


def test_an_item_shows_its_offsets_and_its_state() -> None:
    assert picture.draw_items([item_of(7)], 5) == [
        "  first readable offset 5",
        "  7 .. 7  ████████████████████████████████  ledger 7  open",
    ]


def test_exit_codes_follow_what_happened() -> None:
    codes = {
        NoSuchLedgerError("x"): 1,
        MisuseError("x"): 2,
        LedgerFencedError("x"): 3,
        KeyboardInterrupt(): 130,
        asyncio.CancelledError(): 130,
        OSError("x"): 1,
        ValueError("x"): 1,
    }
    assert [failures.exit_code(error) for error in codes] == list(codes.values())


def test_errors_become_json_with_code_and_ids(capsys: pytest.CaptureFixture[str]) -> None:
    error = LedgerFencedError("ledger 7 was fenced", ledger_id=7, bookies=("a", "b"), raw=b"\xff")
    assert failures.report(error, as_json=True) == 3
    assert json.loads(capsys.readouterr().err) == {
        "error": {
            "code": "ledger_fenced",
            "message": "ledger 7 was fenced",
            "retriable": False,
            "ids": {"ledger_id": 7, "bookies": ["a", "b"], "raw": "\\xff"},
        }
    }


def test_a_servers_parent_reads_its_error_on_the_stream_it_listens_to() -> None:
    stream = io.StringIO()
    failures.report(WindowFullError("no room"), as_json=True, stream=stream)
    assert json.loads(stream.getvalue())["error"]["code"] == "window_full"


def test_errors_become_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    failures.report(FileNotFoundError(2, "No such file or directory", "/nowhere"), as_json=False)
    failures.report(WindowFullError("no room"), as_json=False)
    assert (
        capsys.readouterr().err == "/nowhere: No such file or directory.\nno room (trying again may help)\n"
    )


def test_an_unexpected_error_keeps_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert failures.report(ValueError("a bug"), as_json=True) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err.splitlines()[0])["error"]["code"] == "internal"
    assert "ValueError: a bug" in captured.err


def test_addresses_and_clusters() -> None:
    assert host_and_port("10.0.0.1:3181") == ("10.0.0.1", 3181)
    assert host_and_port("3181") == ("127.0.0.1", 3181)
    assert host_and_port("[::1]:0") == ("::1", 0)
    for wrong in ("", "host", "host:", ":1", "host:70000", "::1:3181", "[::1:3181", "[x]:1"):
        with pytest.raises(MisuseError, match="host:port"):
            host_and_port(wrong)
    with pytest.raises(NoClusterError, match="QUIRE_CLUSTER"):
        cluster_uri("")


class Writer:
    """Acknowledges on drain; takes three at a time."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.open: list[tuple[int, asyncio.Future[int]]] = []

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        if len(self.open) == 3:
            raise WindowFullError("full")
        future = asyncio.get_running_loop().create_future()
        self.open.append((len(self.taken), future))
        self.taken.append(payload)
        return future

    async def drain(self) -> None:
        for number, future in self.open:
            future.set_result(number)
        self.open.clear()


async def test_every_record_is_appended_in_order_and_counted_when_acknowledged() -> None:
    records = [b"%d" % number for number in range(1000)]
    writer = Writer()
    opened: list[None] = []

    async def open_writer() -> Writer:
        opened.append(None)
        return writer

    progress, tally = ProgressLine("x", None, "records"), AppendTally("records", "offset")
    await append_groups(open_writer, partial(in_groups, iter(records)), progress, tally)
    assert (tally.confirmed, tally.bytes, tally.first, tally.last) == (1000, sum(map(len, records)), 0, 999)
    assert writer.taken == records
    assert progress.count == 1000
    assert len(opened) == 1
    await append_groups(open_writer, partial(in_groups, iter(())), progress, tally)
    assert len(opened) == 1, "without a record there is no writer"


@pytest.mark.parametrize("as_json", [False, True])
async def test_what_ended_early_says_how_far_it_came(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(tally: AppendTally) -> None:
        loop = asyncio.get_running_loop()
        writer = Writer()

        async def open_writer() -> Writer:
            return writer

        def source():
            yield from (b"1", b"2", b"3", b"4", b"5")
            loop.call_soon_threadsafe(task.cancel)
            yield b"6"

        task = asyncio.ensure_future(
            append_groups(
                open_writer, partial(in_groups, source()), ProgressLine("x", None, "records"), tally
            )
        )
        await task

    tally, out = AppendTally("records", "offset", log="x"), Output(as_json=as_json)
    with (
        pytest.raises(asyncio.CancelledError),
        tally.telling(out),
    ):
        await work(tally)
    assert tally.confirmed + tally.unknown <= 6
    said = capsys.readouterr().err
    if as_json:
        last = None if tally.last is None else tally.last
        facts = {"log": "x", "confirmed": tally.confirmed, "last_offset": last, "unknown": tally.unknown}
        assert json.loads(said) == facts
    else:
        assert said == tally.sentence + "\n"
    tally.confirmed, tally.last, tally.unknown = 1200, 1199, 3
    with (
        pytest.raises(LedgerFencedError) as ended,
        tally.telling(out),
    ):
        raise LedgerFencedError("it was fenced.", ledger_id=4)
    assert ended.value.message == (
        "it was fenced. Confirmed: 1,200 records, the last one at offset 1,199; unknown: 3."
    )
    assert ended.value.ids == {
        "ledger_id": 4,
        "log": "x",
        "confirmed": 1200,
        "last_offset": 1199,
        "unknown": 3,
    }


class Unread(io.StringIO):
    """A stderr whose reader has gone."""

    def write(self, text: str, /) -> int:
        raise BrokenPipeError


class Stored:
    """Acknowledges in the next turn; takes three at a time, and none more than `entries_max` in all."""

    def __init__(self, entries_max: int = 1 << 30) -> None:
        self.open: list[asyncio.Future[int]] = []
        self.left = entries_max

    def append_nowait(self, _: bytes) -> asyncio.Future[int]:
        self.open = [future for future in self.open if not future.done()]
        if len(self.open) == 3:
            raise WindowFullError("full")
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.open.append(future)
        self.left -= 1
        if self.left < 0:
            loop.call_soon(future.set_exception, LedgerFencedError("fenced"))
        else:
            loop.call_soon(future.set_result, 0)
        return future

    async def drain(self) -> None:
        pass


async def loaded(writer: Stored, window: int, seconds: float = 0.001) -> int:
    """How many entries were acknowledged in a load, by default of a moment."""

    async def work() -> int:
        durations = Histogram()
        with ProgressLine("x", None, "entries") as progress:
            async with asyncio.timeout(5):
                await bench._load(writer, seconds, 1, window, durations, progress)
        assert durations.count == progress.count
        return durations.count

    return await work()


async def test_a_load_waits_where_the_writer_has_room_for_less_than_its_window() -> None:
    assert await loaded(Stored(), 8) >= 8
    for entries_max in range(12):
        with pytest.raises(LedgerFencedError):
            await loaded(Stored(entries_max), 8, seconds=60.0)


async def test_a_job_goes_on_where_nobody_reads_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Unread())
    monkeypatch.setattr(output, "PLAIN_INTERVAL_S", 0.0)

    assert await loaded(Stored(), 1) > 0


def test_an_append_ends_with_its_own_error_where_nobody_reads_what_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr", Unread())
    tally = AppendTally("records", "offset")
    tally.unknown = 1
    with (
        pytest.raises(OSError, match="full"),
        tally.telling(Output(as_json=False)),
    ):
        raise OSError("full")
    Output(as_json=True).note("x")


async def test_no_record_is_held_back_while_the_source_waits() -> None:
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def source():
        yield b"first"
        # Goes on only when the consumer has the first: nothing may wait for a fuller group.
        assert asyncio.run_coroutine_threadsafe(asyncio.wait_for(seen.wait(), 10), loop).result(20)
        yield b"second"

    got = []
    async for group in in_groups(source()):
        got += group
        seen.set()
    assert got == [b"first", b"second"]


async def test_what_the_source_raises_comes_out() -> None:
    def source():
        yield b"x"
        raise MisuseError("Record 2 of input is cut short")

    async def work() -> list[bytes]:
        return [record async for group in in_groups(source()) for record in group]

    with pytest.raises(MisuseError, match="cut short"):
        await work()
