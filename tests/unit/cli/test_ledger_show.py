"""What `quire ledger show` says of a guaranteed write quorum; lists in which one record is damaged."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from typer.testing import CliRunner, Result

from quire.cli.ledger.ledger_show import SHOWN_MAX, guarantee_text, id_text
from quire.cli.main import app
from quire.core.ledger.guarantee import GIVEN_UP, GUARANTEED
from quire.core.ledger.metadata import LedgerState, new_stream
from quire.metadata.keys import stream_name_key
from quire.metadata.records import OF_LEDGERS, OF_STREAMS
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import LIST_LIMIT, Create
from quire.wire import ledger_metadata
from quire.wire.stream_metadata import encode_stream, encode_stream_name
from quire_testing.explorer.beginning import record_of
from quire_testing.explorer.configuration import Configuration

OPEN = replace(record_of(Configuration(3, 3, 3, 2)), custom=(GUARANTEED,))
ALL_THERE = dict.fromkeys(("b0", "b1", "b2"), "up")


def test_the_bookie_that_appends_wait_for_is_named_with_the_way_out() -> None:
    said = guarantee_text(OPEN, {"b0": "up", "b2": "read-only"})
    assert "and b1 is not there: start it" in said
    assert "--at ack-quorum" in said
    assert guarantee_text(OPEN, ALL_THERE) == ", its write quorum is guaranteed"


def test_a_ledger_that_waits_for_nobody_names_nobody() -> None:
    closed = replace(OPEN, state=LedgerState.CLOSED, last_entry=-1, length=0)
    assert "is not there" not in guarantee_text(closed, {})
    assert guarantee_text(replace(OPEN, custom=()), {}) == ""
    assert "was waived" in guarantee_text(replace(OPEN, custom=(GIVEN_UP,)), {})


def test_a_damaged_record_does_not_hide_the_other_ledgers_and_streams(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def made() -> None:
        async with await SqliteStore.open(path, create=True) as store:
            for ledger_id in (1, 2, 3):
                value = ledger_metadata.serialize(replace(OPEN, ledger_id=ledger_id))
                await store.create(OF_LEDGERS.key(ledger_id), b"junk" if ledger_id == 2 else value)
            for stream_id in (4, 5, 6):
                value = encode_stream(new_stream(replace(OPEN, ledger_id=stream_id, custom=()), owner=1))
                await store.create(OF_STREAMS.key(stream_id), b"junk" if stream_id == 5 else value)
                if stream_id != 6:
                    await store.create(stream_name_key(f"s{stream_id}"), encode_stream_name(stream_id))

    def said(*arguments: str, code: int = 0) -> tuple[list[dict[str, object]], str]:
        done = CliRunner().invoke(app, [*arguments, "--json", "--cluster", f"sqlite:{path}"])
        assert done.exit_code == code, done.output
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    asyncio.run(made())
    rows, notes = said("ledger", "list", "--limit", str(10**30))
    assert [(row["ledger_id"], row["state"]) for row in rows] == [(1, "open"), (2, "damaged"), (3, "open")]
    assert "ledger 2" in notes
    rows, notes = said("ledger", "list", "--limit", "2")
    assert [row["ledger_id"] for row in rows] == [1, 2]
    assert "--after 2" in notes
    rows, notes = said("stream", "list")
    assert [(row["stream"], row["state"]) for row in rows] == [("s4", "open"), ("s5", "damaged")]
    assert "the record of stream 5" in notes
    [status], _ = said("cluster", "status", code=5)
    assert (status["ledgers"], status["all_counted"]) == ({"open": 2, "damaged": 1}, True)
    assert status["streams"] == {"open": 2, "damaged": 1}
    assert "the record of stream 5" in said("ledger", "show", "5", code=1)[1]
    assert "stream 6 has no name" in said("ledger", "show", "6", code=1)[1]
    assert [id_text(one, {4: "s4", 6: None}) for one in (1, 4, 6)] == [
        "1",
        "4 (stream s4)",
        "6 (a stream without a readable name)",
    ]


def test_a_list_for_programs_has_all_ledgers_and_one_for_people_says_that_more_follow(tmp_path: Path) -> None:
    path, count = tmp_path / "metadata.db", LIST_LIMIT + 100

    async def made() -> None:
        async with await SqliteStore.open(path, create=True) as store:
            records = [replace(OPEN, ledger_id=ledger_id) for ledger_id in range(count)]
            for start in range(0, count, 100):
                some = records[start : start + 100]
                await store.multi(
                    [Create(OF_LEDGERS.key(one.ledger_id), ledger_metadata.serialize(one)) for one in some]
                )

    def said(*options: str) -> Result:
        done = CliRunner().invoke(app, ["ledger", "list", "--cluster", f"sqlite:{path}", *options])
        assert done.exit_code == 0, done.output
        return done

    asyncio.run(made())
    listed = [json.loads(line)["ledger_id"] for line in said("--json").stdout.splitlines()]
    assert listed == list(range(count))
    table = said()
    assert len(table.stdout.splitlines()) == 1 + SHOWN_MAX
    assert table.stderr == f"More may follow: --after {SHOWN_MAX - 1}.\n"
    assert len(said("--after", str(SHOWN_MAX - 1)).stdout.splitlines()) == 1 + count - SHOWN_MAX
