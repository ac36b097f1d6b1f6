"""Records in and out by the command line: keys, headers, times, format strings, ranges, copies and files."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

import quire as api
from quire.cli.console.record_streams import InputRecord
from quire.cli.local.local_cluster import LocalCluster
from quire.cli.log import ranges as log_ranges
from quire.cli.log.formats import escaped, printer
from quire.cli.log.parameters import SpanOptions
from quire.cli.log.ranges import iso, parse_until, records_of
from quire.cli.log.record_lines import Added
from quire.cli.main import app
from quire.core.errors import MisuseError, QuireError
from quire.core.ids import LedgerId
from quire.log.collecting import Collected, LogCollector
from quire.log.config import LogConfig
from quire.log.heads import LogHeads
from quire.log.records import Record
from quire.log.seeking import offset_since
from quire.log.times import parse_time
from quire.metadata.store import StoreAwayError
from support.commands import error_of, objects

Quire = Callable[..., Result]
ALL = "%o|%T|%k|%K|%s|%S|%h\\n"
"""A format string with everything."""


# --- parts ----------------------------------------------------------------------------------------------------------


def record(**changes: Any) -> Record:
    full = Record(7, 1234, b"key", b"value", (("a", b"1"), ("b", None)), LedgerId(3), 2, 1)
    return full._replace(**changes)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("%s", b"value"),
        ("%S %K", b"5 3"),
        ("%R", b"\0\0\0\5"),
        ("%k=%s\\n", b"key=value\n"),
        ("%o@%T\\t%t", b"7@1234\torders"),
        ("%h", b"a=1,b=NULL"),
        ("100%%\\\\ \\x00\\xFF\\0é", b"100%\\ \0\xff\0" + "é".encode()),
        ("", b""),
    ],
)
def test_a_format_string_prints(text: str, printed: bytes) -> None:
    assert printer(text, "orders")(record()) == printed


def test_a_tombstone_without_a_key_in_a_format_string() -> None:
    assert printer("[%k|%K|%s|%S|%R|%h]", "x")(record(key=None, value=None, headers=())) == (
        b"[|-1||-1|\xff\xff\xff\xff|]"
    )


@pytest.mark.parametrize("text", ["%x", "%", "a%", "\\q", "\\", "\\x1", "\\xgg"])
def test_a_wrong_token_is_named_with_those_that_there_are(text: str) -> None:
    with pytest.raises(MisuseError, match=r"the tokens are %s|the escapes are"):
        printer(text, "x")


def test_delimiters_may_have_escapes() -> None:
    assert (escaped(":", "-K"), escaped("\\t", "-K"), escaped("=>", "-K")) == (b":", b"\t", b"=>")
    with pytest.raises(MisuseError, match="-K is empty"):
        escaped("", "-K")


NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [
        ("1700000000000", NOW),
        ("@5", 5),
        ("-5", -5),
        ("now", NOW),
        ("-1h", NOW - 3_600_000),
        ("-90s", NOW - 90_000),
        ("-2d", NOW - 172_800_000),
        ("-250ms", NOW - 250),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T22:13:20", NOW),
        ("2023-11-14T23:13:20.250+01:00", NOW + 250),
        ("2023-11-14", NOW - NOW % 86_400_000),
    ],
)
def test_times(text: str, time_ms: int) -> None:
    assert parse_time(text, "--from-time takes", NOW) == time_ms


@pytest.mark.parametrize("text", ["", "yesterday", "-1y", "1h", "-h", "12:00"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(MisuseError, match="--from-time takes ISO 8601"):
        parse_time(text, "--from-time takes ISO 8601", NOW)
    assert parse_until("17").offset == 17
    assert parse_until("@17").time_ms == 17
    assert iso(NOW) == "2023-11-14T22:13:20.000Z"


@pytest.mark.parametrize("text", ["1700000000", "@1700000000"])
def test_seconds_where_milliseconds_are_meant_are_refused_with_the_milliseconds(text: str) -> None:
    with pytest.raises(
        MisuseError, match=f"{text} looks like seconds since 1970: {NOW} is the same time in milliseconds"
    ):
        SpanOptions(from_time=text)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({"start": 1, "last": 2}, {}),
        ({"start": 1, "from_time": "-1h"}, {}),
        ({"end": 1, "until": "2"}, {}),
        ({"start": 5, "until": "4"}, {}),
        ({}, {"follow": True, "recover": True}),
        ({"last": 3}, {"recover": True}),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], how: dict[str, bool]) -> None:
    with pytest.raises(MisuseError):
        SpanOptions(**options).span(**how)


@given(st.none() | st.binary(max_size=6), st.none() | st.binary(max_size=3))
def test_what_is_added_never_replaces(value: bytes | None, key: bytes | None) -> None:
    added = Added(b"k", (("h", b"v"),), 5, None, empty_is_tombstone=True)
    given_record = InputRecord(value, key, (("own", None),), 9)
    assert added.to(given_record) == InputRecord(
        value or None, b"k" if key is None else key, (("own", None), ("h", b"v")), 9
    )
    assert Added(key_delimiter=b"=>").to(b"a=>b=>c") == InputRecord(b"b=>c", b"a")
    assert Added(key_delimiter=b":").to(b"none") == InputRecord(b"none")


# --- against a cluster ----------------------------------------------------------------------------------------------


@pytest.fixture
def quire(cluster: LocalCluster) -> Quire:
    runner = CliRunner(env={"QUIRE_CLUSTER": cluster.uri, "NO_COLOR": "1", "TERM": "dumb"})

    def call(*arguments: str, given: bytes = b"", code: int = 0, **env: str) -> Result:
        result = runner.invoke(app, ["log", *arguments], input=given, env=env)
        assert result.exit_code == code, result.output
        return result

    return call


def test_keys_headers_times_and_tombstones_go_in_and_come_out(quire: Quire) -> None:
    quire("create", "in")
    lines = b"a:1\nb:2:3\nplain\nc:\n"
    done = quire("append", "in", "-K:", "-H", "src=web", "-Z", "--timestamp", "@77", "-k", "d", given=lines)
    assert "Log in: 4 records" in done.stdout
    quire("append", "in", "--format", "json", "--key", "k", given=b'{"value":"v","timestamp_ms":5}\n')
    assert quire("read", "in", "-f", ALL).stdout == (
        "0|77|a|1|1|1|src=web\n1|77|b|1|2:3|3|src=web\n2|77|d|1|plain|5|src=web\n3|77|c|1||-1|src=web\n"
        "4|5|k|1|v|1|\n"
    )
    assert quire("read", "in", "-K:", "--end", "3").stdout == "a:1\nb:2:3\nd:plain\n"
    for wrong in (
        ("-H", "none"),
        ("-K:", "-f", "json"),
        ("--timestamp", "soon"),
        ("-f", "x"),
        ("--wait", "--yes"),
    ):
        assert error_of(quire("append", "in", *wrong, "--json", code=2))["code"] == "misuse"
    for wrong in (
        ("-f", "%q"),
        ("-f", "x"),
        ("-f", "%s", "--delimited"),
        ("-K:", "-f", "json"),
        ("--times",),
    ):
        assert quire("read", "in", *wrong, code=2).stdout == ""


def test_an_append_that_ends_early_says_how_far_it_came(quire: Quire) -> None:
    quire("create", "early")
    assert quire("append", "early").stdout.startswith("Log early: 0 records")
    assert objects(quire("show", "early", "--json"))[0]["ledgers"] == 0, "without a record there is no writer"
    lines = b'{"value":"1"}\n{"value":"2"}\nnone\n{"value":"3"}\n'
    said = quire("append", "early", "--format", "json", given=lines, code=1).stderr
    assert "Line 3 of standard input is no record" in said
    assert "Confirmed: 2 records, the last one at offset 1." in said
    error = error_of(quire("append", "early", "--format", "json", "--json", given=lines, code=1))
    assert error["code"] == "bad_input"
    assert {name: error["ids"][name] for name in ("log", "confirmed", "last_offset", "unknown")} == {
        "log": "early",
        "confirmed": 2,
        "last_offset": 3,
        "unknown": 0,
    }
    long = b"1\n" + b"x" * (6 << 20) + b"\n"
    assert error_of(quire("append", "early", "--json", given=long, code=1))["ids"]["last_offset"] == 4
    assert quire("read", "early").stdout == "1\n2\n1\n2\n1\n"


async def write(uri: str, name: str, times: list[int], ledgers: int) -> None:
    """Records `0`, `1`, … with these times, in several ledgers and small entries."""
    async with api.connect(uri) as client:
        await client.log(name).create()
        log = client.log(name, config=LogConfig(batch_records_max=3))
        size = len(times) // ledgers
        for first in range(0, len(times), size):
            async with await log.open_writer() as writer:
                part = range(first, min(first + size, len(times)))
                values = [b"%d" % number for number in part]
                await writer.append_many(values, timestamps_ms=[times[number] for number in part])


def test_times_find_the_first_record_that_is_as_late(quire: Quire, cluster: LocalCluster) -> None:
    times = [50, 10, 20, 90, 30, 30, 60, 95, 5, 5, 5, 5, 100, 1, 120, 110, 130, 2]
    asyncio.run(write(cluster.uri, "times", times, 3))

    async def found() -> list[int]:
        async with api.connect(cluster.uri) as client:
            log = client.log("times")
            about = await log.describe()
            return [await offset_since(log, about, from_ms) for from_ms in range(140)]

    def naive(from_ms: int) -> int:
        return next((place for place, at in enumerate(times) if at >= from_ms), len(times))

    assert asyncio.run(found()) == [naive(from_ms) for from_ms in range(140)]
    assert quire("read", "times", "--from-time", "@96", "--until", "@115").stdout == "12\n13\n"
    assert quire("read", "times", "--from-time", "@96", "--until", "14", "-f", "%s,").stdout == "12,13,"
    assert quire("read", "times", "--from-time", "-1h").stdout == ""
    quire("truncate", "times", "--before", "5", "--yes")
    assert quire("read", "times", "--from-time", "@90", "--last", "1", code=2).stdout == ""
    assert quire("read", "times", "--from-time", "@90", "--end", "8").stdout == "7\n"
    quire("truncate", "times", "--before", "@96", "--yes")
    said = quire("truncate", "times", "--before", "1,18", "--yes", code=2).stderr
    assert "--before takes an offset, or a time: ISO 8601" in said
    assert quire("read", "times", "--end", "13").stdout == "12\n"


def test_one_rule_for_what_lies_outside(quire: Quire, cluster: LocalCluster) -> None:
    asyncio.run(write(cluster.uri, "rule", [1] * 10, 2))
    quire("truncate", "rule", "--before", "4", "--yes")
    assert quire("read", "rule", "--end", "99").stdout == "4\n5\n6\n7\n8\n9\n"
    assert quire("read", "rule", "--last", "99").stdout == "4\n5\n6\n7\n8\n9\n"
    assert quire("read", "rule", "--last", "2", "--until", "9").stdout == "8\n"
    assert quire("read", "rule", "--start", "10").stdout == ""
    assert quire("read", "rule", "--follow", "--last", "1", "--until", "10").stdout == "9\n"
    for start, code in (("3", "trimmed"), ("11", "past_end")):
        for more in ((), ("--follow",)):
            refused = quire("read", "rule", "--start", start, *more, "--json", code=1)
            assert error_of(refused)["code"] == code


async def test_following_until_a_time_ends_when_it_is_over(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(cluster.uri, "clock", [1] * 4, 1)
    monkeypatch.setattr(log_ranges, "_GRACE_MS", 0)

    async def read() -> list[bytes | None]:
        soon = time.time_ns() // 1_000_000 + 300
        async with api.connect(cluster.uri) as client:
            span = SpanOptions(last=3, until=f"@{soon}").span(follow=True)
            return [one.value async for one in records_of(client.log("clock"), span)]

    assert await read() == [b"1", b"2", b"3"]


def test_a_copy_and_files_have_all_that_records_have(quire: Quire, tmp_path: Path) -> None:
    quire("create", "whole", "-E2", "-w2", "-a1")
    records = [
        {"value": "v", "key": "k", "headers": [{"name": "h", "value": "x"}], "timestamp_ms": 1},
        {"value": None, "key": "gone", "timestamp_ms": 2},
        {"value": "", "timestamp_ms": 3},
        {
            "value_base64": "/w==",
            "key_base64": "/g==",
            "headers": [{"name": "n", "value": None}],
            "timestamp_ms": 4,
        },
    ]
    given_lines = "".join(json.dumps(one) + "\n" for one in records).encode()
    quire("append", "whole", "--format", "json", given=given_lines)

    def told(name: str) -> list[dict[str, Any]]:
        kept = ("offset", "timestamp_ms", "key", "key_base64", "value", "value_base64", "headers")
        return [
            {field: one[field] for field in kept if field in one}
            for one in objects(quire("read", name, "-f", "json"))
        ]

    quire("copy", "whole", "copied")
    assert told("copied") == told("whole")
    assert objects(quire("show", "copied", "--json"))[0]["quorums"] == "2/2/1"
    assert error_of(quire("copy", "whole", "copied", "--json", code=1))["code"] == "already_exists"
    added = objects(quire("copy", "whole", "copied", "--append", "--last", "1", "--json"))[0]
    assert (added["records"], added["first_offset"], added["last_offset"]) == (1, 4, 4)
    assert quire("copy", "whole", "whole", code=2).stdout == ""
    for ending in ("jsonl", "delimited", "parquet"):
        file = tmp_path / f"whole.{ending}"
        made = objects(quire("export", "whole", str(file), "--json"))[0]
        assert (made["records"], made["bytes"]) == (4, file.stat().st_size)
        quire("import", ending, str(file), "--create")
        assert told(ending) == told("whole"), ending
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"whole.{ending}" for ending in ("delimited", "jsonl", "parquet")
    ]
    assert pq.read_table(tmp_path / "whole.parquet").column("offset").to_pylist() == [0, 1, 2, 3]
    before = (tmp_path / "whole.jsonl").read_bytes()
    assert "would be replaced" in quire("export", "whole", str(tmp_path / "whole.jsonl"), code=2).stderr
    quire("export", "whole", str(tmp_path / "whole.jsonl"), "--last", "1", "--yes")
    assert (tmp_path / "whole.jsonl").read_bytes() == before.splitlines(keepends=True)[-1]
    assert "give --format" in quire("export", "whole", str(tmp_path / "x"), code=2).stderr


def test_foreign_parquet_is_taken_or_named(quire: Quire, tmp_path: Path) -> None:
    moments = pa.array([1_000_000, None], pa.timestamp("us", "Europe/Berlin"))
    table = pa.table({"value": ["text", None], "timestamp": moments, "more": [1, 2]})
    pq.write_table(table, tmp_path / "some.parquet")
    quire("import", "foreign", str(tmp_path / "some.parquet"), "--create")
    first, second = objects(quire("read", "foreign", "--json"))
    assert (first["value"], first["timestamp_ms"], first["key"]) == ("text", 1000, None)
    assert (second["value"], second["timestamp_ms"] > NOW) == (None, True)
    pq.write_table(pa.table({"v": [1]}), tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("text")
    for name, why in (("none", "has no column value"), ("text", "holds no records")):
        said = quire("import", "foreign", str(tmp_path / f"{name}.parquet"), code=1).stderr
        assert why in said
    assert "does not exist" in quire("import", "nowhere", str(tmp_path / "some.parquet"), code=1).stderr


def test_a_deletion_that_was_cut_off_is_ended_after_the_question(
    quire: Quire, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin() -> None:
        async with api.connect(cluster.uri) as client:
            heads = LogHeads(client.store)
            found = await heads.read((await client.log("half").identify()).log_id)
            assert found is not None
            await heads.write(found[0].with_deletion(0), found[1])

    quire("create", "half")
    asyncio.run(begin())
    monkeypatch.setattr("quire.cli.console.asking.can_ask", lambda: True)
    assert "Log half is deleted" in quire("delete", "half", given=b"y\n").stdout
    assert "does not exist" in quire("delete", "half", code=1).stderr
    quire("create", "half")


def test_a_collection_that_goes_on_outlives_an_outage_of_the_store(
    quire: Quire, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[QuireError | Collected] = [
        StoreAwayError("the store is away"),
        Collected((), (), (), 5),
        MisuseError("enough"),
    ]

    async def look(_: LogCollector) -> Collected:
        if isinstance(found := looks.pop(0), QuireError):
            raise found
        return found

    monkeypatch.setattr(LogCollector, "collect", look)
    done = quire("collect", "--every", "0.01", code=2)
    assert "5 things are watched" in done.stdout
    assert "ended early, the next one comes in 0.01 s: the store is away" in done.stderr
    looks.insert(0, StoreAwayError("the store is away"))
    assert "the store is away" in quire("collect", code=1).stderr


def test_settings_are_altered_for_the_next_ledgers(quire: Quire, cluster: LocalCluster) -> None:
    quire("create", "altered")
    quire("append", "altered", given=b"1\n")
    done = objects(quire("alter", "altered", "-E2", "-w2", "--json"))[0]
    assert (done["quorums"], done["former_quorums"]) == ("2/2/2", "3/3/2")
    assert "already" in quire("alter", "altered", "-E2").stdout
    assert error_of(quire("alter", "altered", "-E1", "--json", code=2))["code"] == "invalid_quorum"
    quire("append", "altered", given=b"2\n")
    shown = objects(quire("show", "altered", "--json"))[0]
    ledgers = [str(item["ledger_id"]) for item in shown["items"]]
    runner = CliRunner(env={"QUIRE_CLUSTER": cluster.uri})
    made = [runner.invoke(app, ["ledger", "show", ledger, "--json"]).stdout for ledger in ledgers]
    assert [json.loads(text)["quorums"] for text in made] == ["3/3/2", "2/2/2"]
    assert quire("read", "altered").stdout == "1\n2\n"


def test_lists_and_shows_have_sizes_quorums_leader_and_times(quire: Quire) -> None:
    name = "with space"
    quire("create", name)
    for number in range(3):
        quire("append", name, "--timestamp", f"@{number}", given=b"12345\n")
    row = next(row for row in objects(quire("list", "--json")) if row["log"] == name)
    assert (row["records"], row["ledgers"]) == (3, 3)
    assert row["bytes"] > 15
    assert " B" in quire("list").stdout
    shown = objects(quire("show", name, "--json"))[0]
    assert len(shown["items"]) == shown["ledgers"] == 3
    assert (shown["min_time_ms"], shown["max_time_ms"], shown["digest"]) == (0, 2, "crc32c")
    assert shown["leader"] == {"epoch": 3, "host": "", "state": "none"}
    assert [
        item["first_offset"] for item in objects(quire("show", name, "--limit", "2", "--json"))[0]["items"]
    ] == [1, 2]
    text = quire("show", name, "--limit", "1").stdout
    assert "3 records in 3 ledgers" in text
    assert "E/Qw/Qa 3/3/2" in text
    assert "times of records: 1970-01-01T00:00:00.000Z to 1970-01-01T00:00:00.002Z" in text
    assert "the newest 1 of 3 ledgers" in text
    assert text.count("  ledger ") == 1


def test_a_log_with_a_password(quire: Quire, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.touch(0o600)
    secret.write_text("p\n")
    quire("create", "secret")
    quire("append", "secret", "--password-file", str(secret), given=b"1\n")
    quire("append", "secret", given=b"2\n", QUIRE_PASSWORD="p")
    assert quire("read", "secret", "--password-file", str(secret)).stdout == "1\n2\n"
    assert quire("read", "secret", "--last", "1", QUIRE_PASSWORD="p").stdout == "2\n"
    assert error_of(quire("read", "secret", "--json", code=1))["code"] == "wrong_password"
    quire("copy", "secret", "copied-secret", "--password-file", str(secret))
    assert error_of(quire("read", "copied-secret", "--json", code=1))["code"] == "wrong_password"


def test_what_destroys_needs_yes_where_nobody_can_be_asked(quire: Quire) -> None:
    quire("create", "kept")
    quire("append", "kept", given=b"1\n")
    for words in (
        ("delete", "kept"),
        ("truncate", "kept", "--before", "1"),
        ("cursors", "kept", "--remove", "c"),
    ):
        assert "give --yes when the command cannot ask" in quire(*words, code=2).stderr
    assert quire("read", "kept").stdout == "1\n"
    assert objects(quire("delete", "kept", "--yes", "--json")) == [{"log": "kept", "deleted": True}]
    assert error_of(quire("read", "kept", "--json", code=1))["code"] == "no_such_log"
