"""What `quire log read` prints goes back through `quire log append`: values, keys, headers and tombstones, byte for byte."""

import asyncio
import io
import json
import os
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import quire
from quire.cli.console.output import Output
from quire.cli.console.record_streams import BadInputError, InputRecord, size_of
from quire.cli.local.local_cluster import LocalCluster
from quire.cli.log.files import FileForm, read_files
from quire.cli.log.record_lines import Form, print_records, read_json, read_log_records, read_marked
from quire.cli.main import app
from quire.core.ids import LedgerId
from quire.log.records import Record
from support.rounds import FULL, keep_figures, rounds

MIB = 1024 * 1024
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
BYTES = (
    st.none() | st.binary(max_size=60) | st.text(max_size=10).map(lambda text: text.encode("utf-8", "ignore"))
)
GIVEN = st.builds(
    InputRecord, BYTES, BYTES, st.lists(st.tuples(NAMES, BYTES), max_size=3).map(tuple), st.integers(0, 2**40)
)


def record_of(one: InputRecord, offset: int = 0) -> Record:
    return Record(offset, one.timestamp_ms or 0, one.key, one.value, one.headers, LedgerId(1), 0, 0)


class Standard:
    """What standard output is made of."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()

    def isatty(self) -> bool:
        return False


def printed(records: list[InputRecord], form: Form, monkeypatch: pytest.MonkeyPatch) -> bytes:
    standard = Standard()

    async def each():
        for record in records:
            yield record_of(record)

    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", standard)
        asyncio.run(print_records(Output(as_json=False), each(), form, at_once=False))
    return standard.buffer.getvalue()


def everything(records: list[bytes | InputRecord]) -> list[InputRecord]:
    return [InputRecord(record) if isinstance(record, bytes) else record for record in records]


@given(st.lists(GIVEN, max_size=5))
def test_each_form_that_has_everything_comes_back(records: list[InputRecord]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines = io.BytesIO(printed(records, Form.JSON, patch))
        marked = io.BytesIO(printed(records, Form.DELIMITED, patch))
    assert list(read_json(lines, "x", MIB)) == records
    assert everything(list(read_marked(marked, "x", MIB))) == [
        record._replace(timestamp_ms=None) for record in records
    ]


@pytest.mark.parametrize(
    "line",
    [
        b"text",
        b"[1]",
        b"{}",
        b'{"key": "only"}',
        b'{"vale": "x", "value": "y"}',
        b'{"value": 5}',
        b'{"value": "x", "value_base64": "eA=="}',
        b'{"value_base64": "?"}',
        b'{"value": "\\ud800"}',
        b'{"value": "x", "headers": [["a", "b"]]}',
        b'{"value": "x", "headers": 7}',
        b'{"value": "x", "headers": [{"name": "\\ud800"}]}',
        b'{"value": "x", "timestamp_ms": 1.5}',
        b"[" * 100_000,
    ],
)
def test_a_json_line_that_is_no_record_is_named(line: bytes) -> None:
    with pytest.raises(BadInputError, match="Line 2 of input is no record"):
        list(read_json(io.BytesIO(b'{"value": "first"}\n' + line + b"\n"), "input", MIB))


@pytest.mark.parametrize(
    "body",
    [b"", b"\x04", b"\x02", b"\x01\0\0\0\x09short", b"\0\0\0\0\0value", b"\x02\0\0\0\x01" + b"\xff" * 4],
)
def test_a_marked_record_that_is_damaged_is_named(body: bytes) -> None:
    data = b"\0\0\0\x01x" + (len(body) | 1 << 31).to_bytes(4, "big") + body
    with pytest.raises(BadInputError, match="Record 2 of input is damaged"):
        list(read_marked(io.BytesIO(data), "input", MIB))


@pytest.mark.parametrize("header", [(None, b"v"), (b"h", 5), (b"\xff", b"v")])
def test_a_parquet_file_whose_headers_are_none_is_named(tmp_path: Path, header: tuple) -> None:
    name, value = pa.array([header[0]], pa.binary()), pa.array([header[1]])
    text = pa.Array.from_buffers(pa.string(), 1, name.buffers())
    headers = pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([text, value], ["key", "value"]))
    pq.write_table(pa.table({"value": [b"x"], "headers": headers}), tmp_path / "some.parquet")
    with pytest.raises(BadInputError, match="holds no records that can be appended"):
        list(map(size_of, read_files({tmp_path / "some.parquet": FileForm.PARQUET})))


def test_two_forms_at_once_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["log", "read", "x", "--format", "json", "--delimited"])
    assert done.exit_code == 2
    assert "records cannot be delimited and json at once" in done.stderr
    with pytest.raises(FileNotFoundError):
        read_log_records([tmp_path / "none"], Form.JSON)


def call(uri: str, *arguments: str, given: bytes = b"") -> Result:
    done = CliRunner(env={"QUIRE_CLUSTER": uri}).invoke(app, ["log", *arguments], input=given)
    assert done.exit_code == 0, done.output[-1000:]
    return done


def some(count: int, longest: int) -> list[InputRecord]:
    """Records of every kind; `longest` of them have values of 4 MiB, which the API takes without being asked."""
    chance = random.Random(33)
    records = []
    for number in range(count):
        value = chance.choice([None, b"", b"text %d" % number, chance.randbytes(30), b"two\nlines"])
        key = chance.choice([None, b"", b"key %d" % number, chance.randbytes(9)])
        headers = chance.choice([(), (("a", b"b"),), (("a", None), ("a", b"\xff"), ("", b""))])
        records.append(InputRecord(value, key, headers, 1_700_000_000_000 + chance.randrange(1000)))
    for place in range(1, longest, 2):
        records[place] = InputRecord(chance.randbytes(4 * MIB), b"long", (), 1_700_000_000_000)
        records[place + 1] = InputRecord(b"x" * 4 * MIB, None, (("h", b"v"),), 1_700_000_000_000)
    return records


async def write(uri: str, name: str, records: list[InputRecord]) -> None:
    async with quire.connect(uri) as client:
        await client.log(name).create()
        async with await client.log(name).open_writer() as writer:
            values, keys, headers, times = zip(*records, strict=True)
            plain = [time_ms if time_ms is not None else 0 for time_ms in times]
            await writer.append_many(values, keys=keys, headers=headers, timestamps_ms=plain)


async def stored(uri: str, name: str) -> list[InputRecord]:
    async with quire.connect(uri) as client:
        return [
            InputRecord(one.value, one.key, one.headers, one.timestamp_ms)
            async for one in client.log(name).read(start=0)
        ]


def piped(uri: str, read: list[str], append: list[str]) -> subprocess.Popen[str]:
    """`log read … | log append …`."""
    quire_log = [sys.executable, "-m", "quire.cli.main", "log"]
    line = f"{shlex.join([*quire_log, 'read', *read])} | {shlex.join([*quire_log, 'append', *append])}"
    return subprocess.Popen(
        ["bash", "-o", "pipefail", "-c", line],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"QUIRE_CLUSTER": uri},
    )


def only_values(records: list[InputRecord]) -> list[InputRecord]:
    return [InputRecord((one.value or b"").replace(b"\n", b" ")) for one in records]


def only_keys_and_values(records: list[InputRecord]) -> list[InputRecord]:
    return [
        InputRecord(
            (one.value or b"").replace(b"\n", b" "), (one.key or b"").replace(b"\n", b" ").replace(b":", b";")
        )
        for one in records
    ]


def test_reading_into_appending_keeps_everything(cluster: LocalCluster) -> None:
    """In each form all that the form has, byte for byte; through pipes in the full ring, and JSON lines always."""
    began = time.monotonic()
    count, longest = rounds(300, 10_000), 2 if not FULL else 40
    records = some(count, longest)
    sources = {
        "all": records,
        "values": [one._replace(timestamp_ms=0) for one in only_values(records)],
        "pairs": [one._replace(timestamp_ms=0) for one in only_keys_and_values(records)],
    }
    pipes = {
        "delimited": ("all", ["-f", "delimited", "--times"], ["-f", "delimited"]),
        "json": ("all", ["-f", "json"], ["-f", "json"]),
        "lines": ("values", [], []),
        "keyed": ("pairs", ["-K", ":"], ["-K", ":"]),
    }
    for name, those in sources.items():
        asyncio.run(write(cluster.uri, name, those))
    assert asyncio.run(stored(cluster.uri, "all")) == records
    running: dict[str, subprocess.Popen[str]] = {}
    for target, (source, reading, appending) in pipes.items():
        call(cluster.uri, "create", target)
        if FULL or target == "json":  # processes take a second each
            running[target] = piped(cluster.uri, [source, *reading], [target, *appending])
    for target, (source, reading, appending) in pipes.items():
        if target in running:
            out, err = running[target].communicate()
            # Progress may be told; what lines would leave out may not.
            assert (running[target].returncode, "alone" in err, "Traceback" in err) == (0, False, False), err
        else:
            read = call(cluster.uri, "read", source, *reading)
            assert read.stderr == ""
            out = call(cluster.uri, "append", target, *appending, given=read.stdout_bytes).stdout
        assert f"{count:,} records" in out
        copies, wanted = asyncio.run(stored(cluster.uri, target)), sources[source]
        if target in {"delimited", "json"}:
            assert copies == wanted
        else:
            assert [one[:3] for one in copies] == [one[:3] for one in wanted]
    values = [one.value for one in records]
    keep_figures(
        "log-pipes",
        {
            "forms": list(pipes),
            "records": len(records),
            "tombstones": values.count(None),
            "empty_values": values.count(b""),
            "values_of_4_MiB": sum(len(value or b"") == 4 * MIB for value in values),
            "different": 0,
            "seconds": round(time.monotonic() - began),
        },
        seed=33,
    )


def test_lines_keep_values_and_say_what_they_leave_out(cluster: LocalCluster) -> None:
    records = [
        InputRecord(b""),
        InputRecord(b"y" * 4 * MIB),
        InputRecord(None, b"gone"),
        InputRecord(b"v", b"k"),
        InputRecord(b""),
    ]
    asyncio.run(write(cluster.uri, "values alone", records))
    read = call(cluster.uri, "read", "values alone")
    assert read.stdout_bytes == b"\n" + b"y" * 4 * MIB + b"\nv\n\n"
    assert "Left out: 1 tombstone. With keys, headers or line feeds: 1 record." in read.stderr
    call(cluster.uri, "create", "again")
    call(cluster.uri, "append", "again", given=read.stdout_bytes)
    assert call(cluster.uri, "read", "again").stdout_bytes == read.stdout_bytes
    as_json = call(cluster.uri, "read", "values alone", "--json", "--start", "2").stdout.splitlines()
    assert [json.loads(line)["value"] for line in as_json] == [None, "v", ""]
    assert json.loads(as_json[0])["headers"] == []
