"""`quire autorecovery`, `cluster repairs`, its settings, and `bookie forget`, against real processes."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from typer.testing import CliRunner

from quire.cli.local.local_cluster import LocalBookie, LocalCluster
from quire.cli.main import app
from quire.core.ids import BookieId
from quire.env.real import RealClock
from quire.metadata.connect import open_store
from quire.metadata.keys import missing_key
from quire.metadata.repairs import RepairStore
from support.commands import Quire, error_of, objects
from support.waiting import until

LINES = b"".join(b"line %d\n" % number for number in range(200))
WAIT_S = 60.0


def written(quire: Quire, *options: str) -> int:
    return int(objects(quire("ledger", "append", *options, "--json", given=LINES))[0]["ledger_id"])


def members(quire: Quire, ledger: int) -> list[str]:
    (shown,) = objects(quire("ledger", "show", str(ledger), "--json", code=None))  # 5 where a bookie is down
    return [bookie["id"] for item in shown["ensembles"] for bookie in item["bookies"]]


def on(quire: Quire, bookie: LocalBookie, *options: str) -> int:
    """A new ledger that this bookie stores."""
    while bookie.id not in members(quire, ledger := written(quire, *options)):
        pass
    return ledger


def marked(quire: Quire, code: int = 5) -> dict[int, dict[str, Any]]:
    *rows, totals = objects(quire("cluster", "repairs", "--json", code=code))
    assert totals["ledgers"] == len(rows)
    return {row["ledger_id"]: row for row in rows}


async def change(uri: str, key: str, value: bytes | None) -> None:
    """Make a key of the metadata store, or remove it."""
    async with await open_store(uri) as store:
        if value is None:
            await store.delete(key)
        else:
            await store.create(key, value)


async def mark(uri: str, ledger: int, bookie: str) -> None:
    async with await open_store(uri) as store:
        await RepairStore(store, RealClock(), "test").mark_missing(ledger, [BookieId(bookie)])


class Daemon:
    """A running `quire autorecovery --json`."""

    def __init__(self, cluster: LocalCluster, *arguments: str) -> None:
        command = [
            sys.executable,
            "-m",
            "quire",
            "autorecovery",
            "--json",
            "--cluster",
            cluster.uri,
            *arguments,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.facts = json.loads(self.process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, said
        assert "Stopped cleanly." in said


def test_without_a_worker_marks_are_listed_with_what_they_wait_for(
    quire: Quire, cluster: LocalCluster
) -> None:
    assert "No ledger is marked." in quire("cluster", "repairs").stderr
    assert objects(quire("cluster", "lost-delay", "--json")) == [{"lost_delay_s": 300}]
    ledger, other = written(quire), written(quire)
    asyncio.run(mark(cluster.uri, ledger, members(quire, ledger)[0]))
    asyncio.run(change(cluster.uri, missing_key(other), b"of a later version"))
    rows = marked(quire)
    assert "start `quire autorecovery`" in rows[ledger]["waits_for"]
    assert (rows[ledger]["reasons"], rows[ledger]["copies_left"], rows[ledger]["attempts"]) == (
        ["gone"],
        2,
        0,
    )
    assert rows[other]["reasons"] == ["unreadable"]
    assert "the program that wrote the mark" in rows[other]["waits_for"]
    quire("cluster", "autorecovery", "off")
    assert "switched off" in marked(quire)[ledger]["waits_for"]
    assert "switched off" in quire("cluster", "autorecovery", "status").stdout
    quire("cluster", "autorecovery", "on")
    asyncio.run(change(cluster.uri, missing_key(other), None))
    (said,) = objects(quire("cluster", "autorecovery", "status", "--json"))
    assert (said["enabled"], said["auditor"], said["workers"]) == (True, None, [])
    shown = quire("cluster", "repairs", code=5)
    assert "1 ledger marked" in shown.stderr
    for each in (ledger, other):
        quire("ledger", "delete", str(each), "--yes")


def test_a_bookie_dies_its_copies_are_made_and_its_name_is_removed(
    quire: Quire, cluster: LocalCluster
) -> None:
    gone = cluster.bookies[2]
    ledgers = [on(quire, gone, "-E", "2", "-w", "2", "-a", "1") for _ in range(3)]
    held = on(quire, gone, "-E", "2", "-w", "1", "-a", "1")
    refused = quire("bookie", "forget", gone.id, "--json", code=1)
    assert "is registered" in error_of(refused)["message"]
    assert (
        "no bookie of this name" in error_of(quire("bookie", "forget", "none", "--json", code=1))["message"]
    )
    with Daemon(cluster, "--lost-delay", "0", "--rate", "100") as daemon:
        assert objects(quire("cluster", "lost-delay", "--json")) == [{"lost_delay_s": 0}]
        cluster.kill(2)
        until(lambda: not any(gone.id in members(quire, ledger) for ledger in ledgers), seconds=WAIT_S)

        def only_held() -> bool:
            result = CliRunner().invoke(app, ["cluster", "repairs", "--json", "--cluster", cluster.uri])
            rows = objects(result)
            return len(rows) == 2 and "a lost bookie" in rows[0]["waits_for"]

        until(only_held, seconds=WAIT_S)
        row = marked(quire)[held]
        assert (row["attempts"], row["bookies"]) == (1, [gone.id])
        (said,) = objects(quire("cluster", "autorecovery", "status", "--json"))
        assert said["auditor"] == daemon.facts["name"]
        assert [each["name"] for each in said["workers"]] == [said["auditor"]]
        assert list(said["away"]) == [gone.id]
    for ledger in ledgers:
        assert "is good" in quire("ledger", "verify", str(ledger)).stdout
    refused = quire("bookie", "forget", gone.id, "--json", code=1)
    assert f"{held}" in error_of(refused)["message"]
    quire("ledger", "delete", str(held), "--yes")
    quire("bookie", "forget", gone.id)
    assert gone.id not in {row["id"] for row in objects(quire("cluster", "bookies", "--json"))}


def test_what_cannot_be_meant_is_refused(quire: Quire, tmp_path: Path) -> None:
    nowhere = f"sqlite:{tmp_path / 'none.db'}"
    assert error_of(quire("autorecovery", "--json", "--cluster", nowhere, code=1))["code"]
    other = tmp_path / "notes.db"
    other.write_bytes(b"notes of somebody else " * 100)
    refused = error_of(quire("autorecovery", "--json", "--cluster", f"sqlite:{other}", code=1))
    assert str(other) in refused["message"]
    assert error_of(quire("autorecovery", "--rate", "0", "--json", code=2))["code"] == "usage"
    assert error_of(quire("cluster", "lost-delay", "-1", "--json", code=2))["code"] == "usage"
    assert "--dir" in error_of(quire("bookie", "--json", code=2))["message"]


def test_up_runs_one_and_says_when_it_dies(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "up", 1, recovers=True) as local:
        recovery = local.recovery
        assert recovery is not None
        until(lambda: "auto-recovery runs as" in recovery.log.read_text(), seconds=WAIT_S)
        assert recovery.process is not None
        recovery.process.kill()
        assert local.wait(timeout_s=WAIT_S) == [recovery]
        assert "SIGKILL" in recovery.how_it_ended()
