"""`cluster health`, `cluster bookies` and `top`: what a real cluster tells of itself, whole and with a bookie killed."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.cli.cluster import bookie_rows
from quire.cli.cluster.bookie_rows import figures_of
from quire.cli.cluster.cluster import collection_of
from quire.cli.cluster.health import QUORUMS, examine, shape_in
from quire.cli.cluster.snapshot import Snapshot, Snapshots
from quire.cli.cluster.top import heading
from quire.cli.console.output import counted, human_duration
from quire.cli.local.local_cluster import LocalCluster
from quire.cli.main import app
from quire.core.ids import BookieId
from quire.core.ledger.notes import EntryRange
from quire.core.repair.under_replicated_marks import MarkReason, UnderReplicatedMark
from quire.env.real import RealClock
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.repairs import RepairStore
from quire.metadata.sqlite.store import SqliteStore


def call(uri: str, *arguments: str, code: int = 0, given: bytes = b"") -> str:
    done = CliRunner(env={"QUIRE_CLUSTER": uri}).invoke(app, list(arguments), input=given)
    assert done.exit_code == code, done.output
    return done.output


def test_bookies_tell_version_uptime_bytes_and_free_space(cluster: LocalCluster) -> None:
    rows = [json.loads(line) for line in call(cluster.uri, "cluster", "bookies", "--json").splitlines()]
    for row in rows:
        assert row["version"] == quire.__version__
        assert row["uptime_s"] >= 0
        assert 0 < row["free_bytes"] <= row["disk_bytes"]
        assert row["stored_bytes"] > 0
    shown = call(cluster.uri, "cluster", "bookies")
    assert "0 ledgers in 1 segment" in shown
    assert "GiB" in shown


async def test_rates_are_those_between_two_looks(cluster: LocalCluster) -> None:
    async with quire.connect(cluster.uri) as client:
        await client.log("watched").create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        snapshots = Snapshots(client, cluster.uri, 5)
        first = await snapshots.take()
        assert [row["entries_per_s"] for row in first.bookies] == [None] * 3
        async with await client.log("watched").open_writer() as writer:
            await writer.append(b"x")
            second = await snapshots.take()
            (log,) = second.logs
            assert log["writer"], "it tells where the writer runs"
        (log,) = (await snapshots.take()).logs
        assert log["records_per_s"] > 0, "closed, the log tells all that was confirmed"
        assert log["writer"] is None
        assert sum(row["entries_per_s"] > 0 for row in second.bookies) >= 2
        assert second.logs_count == 1


def test_top_says_which_logs_it_leaves_out() -> None:
    seen = Snapshot("x", 0, [], [], 600, 500)
    assert "600 logs (only the first 500 by name are looked at); Ctrl-C" in heading(seen)[1]
    assert seen.facts()["logs_looked_at"] == 500
    assert "600 logs; Ctrl-C" in heading(Snapshot("x", 0, [], [], 600, 0))[1]


def test_top_prints_once_without_a_terminal(cluster: LocalCluster) -> None:
    facts = json.loads(call(cluster.uri, "top", "--once", "--json"))
    assert [row["standing"] for row in facts["bookies"]] == ["up"] * 3
    assert "3 bookies, 3 up" in call(cluster.uri, "top", "--once")


def test_health_has_an_exit_code_for_each_state(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "four", 4) as local:
        assert call(local.uri, "cluster", "health") == "healthy: 4 of 4 bookies can be written to\n"
        dead = local.kill(0)
        said = call(local.uri, "cluster", "health", code=5)
        assert said.startswith(f"attention: 3 of 4 bookies can be written to; {dead.id} needs attention (")
        local.kill(1)
        facts = json.loads(call(local.uri, "cluster", "health", "--json", code=5))
        assert (facts["health"], facts["writable"], facts["bookies"]) == ("attention", 2, 4)
        assert facts["absent_slots"] == 1
        call(local.uri, "log", "create", "orders")
        call(local.uri, "log", "append", "orders", given=b"a record\n")
        said = call(local.uri, "cluster", "health", "--quorums", "5/3/2", code=1)
        assert "a ledger with E=5 Qw=3 Qa=2 needs" in said
        local.kill(2)
        assert "1 of 4 bookies can be written to; a ledger with E=3" in call(
            local.uri, "cluster", "health", code=1
        )


def test_a_store_that_does_not_respond_is_no_health() -> None:
    asked = ("cluster", "health", "--timeout", "0.3", "--cluster", "zk://127.0.0.1:1/ledgers")
    assert "did not respond in 0.3 s" in call("", *asked, code=1)


async def test_bookies_that_are_silent_are_blamed_and_not_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also more of them than are asked at once."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(1000):
                pass
        writer.close()

    monkeypatch.setattr(bookie_rows, "ASKED_AT_ONCE", 1)
    uri = f"sqlite:{tmp_path / 'metadata.db'}"
    server = await asyncio.start_server(silent, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    async with server, await SqliteStore.open(tmp_path / "metadata.db", create=True) as store:
        for name in ("a", "b", "c"):
            await BookieRegistry(store).register(BookieInfo(BookieId(name), "127.0.0.1", port))
        facts, text = await examine(uri, 0.5, shape_in(QUORUMS))
    assert text.startswith("unhealthy: 0 of 3 bookies can be written to; a ledger with E=3 Qw=3 Qa=2 needs")
    assert facts["attention"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "says",
    [
        {},
        {"version": 7, "uptime_ms": "long", "disk": [1], "storage": None},
        {"version": "1\x1b[2J", "uptime_ms": -1, "disk": {"bytes": True}, "storage": {"file_bytes": -5}},
    ],
)
def test_what_an_unknown_program_says_is_shown_only_if_it_can_be(says: dict[str, Any]) -> None:
    assert set(figures_of(says).values()) == {None}


@pytest.mark.parametrize("collector", [None, [1], "x", {"holding": 5, "failure": ["x"], "unknown": "many"}])
def test_a_collector_that_tells_nonsense_does_not_end_the_look_at_others(collector: object) -> None:
    rows = [{"id": "a", "info": {"collector": collector}}, {"id": "b", "info": {"collector": {"unknown": 2}}}]
    assert collection_of(rows) == {"holding": {}, "orphans": 2, "collector_failures": {}}


def test_counts_and_durations_read_well() -> None:
    assert [counted(n, "bookie") for n in (0, 1, 2)] == ["0 bookies", "1 bookie", "2 bookies"]
    assert [counted(n, "entry") for n in (1, 1200)] == ["1 entry", "1,200 entries"]
    seconds = (0.4, 8, 60, 725, 90_000, 86_400 * 3)
    assert [human_duration(s) for s in seconds] == ["0s", "8s", "1m", "12m 5s", "1d 1h", "3d"]


@pytest.mark.parametrize("quorums", ["", "3", "3/3", "3/3/2/1", "3/a/2", "-3/3/2", "2/3/2", "3/3/0"])
def test_quorums_that_cannot_be_are_refused(cluster: LocalCluster, quorums: str) -> None:
    call(cluster.uri, "cluster", "health", "--quorums", quorums, code=2)


def test_a_ledger_that_has_been_marked_for_a_minute_wants_attention_in_every_command(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path / 'metadata.db'}"

    async def marked() -> None:
        async with await SqliteStore.open(tmp_path / "metadata.db", create=True) as store:
            marks = RepairStore(store, RealClock(), "test")
            now_ms = RealClock().wall_ms()
            for seen_ms in (now_ms, now_ms - 61_000):
                mark = UnderReplicatedMark(
                    MarkReason.HOLE, BookieId("b1"), EntryRange(0, 9), 0, "test", seen_ms
                )
                await marks.mark(seen_ms, [mark])

    asyncio.run(marked())
    assert json.loads(call(uri, "cluster", "health", "--json", code=1))["marked"] == 1
    assert json.loads(call(uri, "cluster", "status", "--json", code=5))["marked"] == 1
    said = "1 ledger has been marked for repair for more than a minute (`quire cluster repairs`)"
    assert said in call(uri, "cluster", "health", code=1)
    assert said in call(uri, "cluster", "status", code=5)
    assert said in call(uri, "top", "--once")
