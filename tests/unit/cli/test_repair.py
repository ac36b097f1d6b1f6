"""`quire ledger repair`, `cluster repair`, `cluster under-replication` and `ledger verify --all` against real bookie processes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import connect
from quire.cli.ledger.repair import who
from quire.cli.local.local_cluster import LocalBookie, LocalCluster
from quire.metadata.keys import stream_name_key
from quire.wire.stream_metadata import encode_stream_name
from support.commands import Quire, error_of, objects

LINES = b"".join(b"line %d\n" % number for number in range(200))
STRIPED = ("-E", "2", "-w", "1", "-a", "1")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), 4) as local:
        yield local


def written(quire: Quire, *options: str) -> str:
    return str(objects(quire("ledger", "append", *options, "--json", given=LINES))[0]["ledger_id"])


def members(quire: Quire, ledger: str) -> list[str]:
    (shown,) = objects(quire("ledger", "show", ledger, "--json", code=None))  # 5 where a bookie is down
    return [bookie["id"] for item in shown["ensembles"] for bookie in item["bookies"]]


def on(quire: Quire, bookie: LocalBookie, *options: str) -> str:
    """A new ledger that this bookie stores."""
    while bookie.id not in members(quire, ledger := written(quire, *options)):
        pass
    return ledger


def test_who_has_no_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may stand in no file of names."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 1234)
    assert who() == "user 1234"


def test_a_healthy_cluster_has_no_missing_copies(quire: Quire) -> None:
    ledger = written(quire)
    assert "No copy is missing" in quire("cluster", "under-replication").stderr
    assert quire("cluster", "under-replication", "--json").stdout == ""
    assert quire("cluster", "debt", "--json").stdout == "", "the name of before still works"
    (plan, end) = objects(quire("cluster", "repair", "--json"))
    assert (plan["ledgers"], plan["entries"], plan["blocked"]) == (0, 0, {})
    assert (end["entries"], end["left"]) == (0, {})
    assert quire("ledger", "repair", ledger).stdout == f"Ledger {ledger}: no copy is missing.\n"
    counts = objects(quire("ledger", "verify", "--all", "--json"))[-1]
    assert (counts["incomplete"], counts["failed"], counts["complete"]) == (0, 0, counts["ledgers"])


def test_a_stream_to_which_no_name_leads_is_named_as_not_looked_at(
    quire: Quire, cluster: LocalCluster
) -> None:
    quire("stream", "create", "unnamed")
    (stream,) = objects(quire("stream", "show", "unnamed", "--json"))

    async def change(damaged: bool) -> None:
        async with connect(cluster.uri) as client:
            found = await client.store.get(stream_name_key("unnamed"))
            assert found is not None
            value = b"\xff" if damaged else encode_stream_name(stream["ledger_id"])
            await client.store.put(stream_name_key("unnamed"), value, found.version)

    asyncio.run(change(damaged=True))
    *said, counts = objects(quire("ledger", "verify", "--all", "--json", code=5))
    assert counts["failed"] >= 1
    assert {"stream": stream["ledger_id"], "error": "corrupt_metadata"} in said
    asyncio.run(change(damaged=False))
    quire("stream", "delete", "unnamed", "--yes")


def test_words_that_cannot_be_meant_are_refused(quire: Quire, cluster: LocalCluster, tmp_path: Path) -> None:
    assert error_of(quire("ledger", "repair", "999", "--json", code=1))["code"] == "no_such_ledger"
    assert error_of(quire("ledger", "repair", "many", "--json", code=2))["code"] == "usage"
    assert error_of(quire("ledger", "verify", "--json", code=2))["code"] == "misuse"
    assert error_of(quire("ledger", "verify", "1", "--all", "--json", code=2))["code"] == "misuse"
    assert error_of(quire("cluster", "repair", "--rate", "0", "--json", code=2))["code"] == "usage"
    there = quire("cluster", "repair", "--bookie", cluster.bookies[0].id, "--json", code=1)
    assert "is registered" in error_of(there)["message"]
    nobody = quire("cluster", "repair", "--bookie", "nobody", "--json", code=1)
    assert "no bookie of this name" in error_of(nobody)["message"]
    ledger = written(quire)
    for text, what in (("7\n", "line 1"), ("# fine\n7 1-2\n", "line 2")):
        (tmp_path / "losses").write_text(text)
        refused = quire(
            "ledger", "repair", ledger, "--accept-loss", str(tmp_path / "losses"), "--json", code=2
        )
        assert what in error_of(refused)["message"]
    missing = quire("ledger", "repair", ledger, "--accept-loss", "no-file", "--json", code=2)
    assert "no-file" in error_of(missing)["message"]


def test_a_bookie_that_is_gone_is_counted_planned_for_and_replaced(
    quire: Quire, cluster: LocalCluster, tmp_path: Path
) -> None:
    gone = cluster.bookies[3]
    whole, halved = on(quire, gone), on(quire, gone, *STRIPED)
    stream = objects(quire("stream", "create", "clicks", "-E", "4", "-w", "3", "--json"))[0]["ledger_id"]
    quire("stream", "append", "clicks", given=LINES)
    quire("stream", "close", "clicks", "--yes")
    cluster.kill(3)

    rows = objects(quire("cluster", "under-replication", "--json", code=5))
    found = {(row["reason"], row["copies_left"]): row for row in rows}
    unseen = found["not looked at", None]
    assert unseen["bookies"] == [gone.id]
    assert unseen["entries"] >= 200 + 100 + 150, "what it should hold of these and of other ledgers"
    assert found.keys() == {("not looked at", None)}, "what it has may be whole"
    said = quire("cluster", "under-replication", code=5)
    assert f"a response from {gone.id}" in " ".join(said.stdout.split())
    assert unseen["streams"] == {str(stream): "clicks"}
    assert f"Streams among these ledgers: {stream} (stream clicks)." in said.stderr
    incomplete = quire("ledger", "verify", "--all", code=5).stdout
    assert f"Stream clicks (ledger {stream}) is good, but has holes" in incomplete
    assert f"{gone.id} did not say what it has of entries 0..199 (UNREACHABLE)" in incomplete
    assert "no copy was found, and a bookie did not say what it has" in incomplete
    quire("stream", "delete", "clicks", "--yes", "--force")

    # It is only down until a person says that it is gone.
    assert objects(quire("cluster", "repair", "--dry-run", "--json", code=5))[0]["entries"] == 0
    lost = ("--bookie", gone.id)
    (plan,) = objects(quire("cluster", "repair", *lost, "--dry-run", "--json", code=1))
    assert plan["entries"] >= 200
    rows = {(row["reason"], row["copies_left"]): row for row in plan["debt"]}
    assert rows["gone", 2]["entries"] == plan["entries"]
    assert rows["gone only", 0]["entries"] == 100
    assert f"--bookie {gone.id}" in rows["gone", 2]["needs"]
    assert gone.id in members(quire, whole)
    (told,) = objects(quire("ledger", "repair", whole, *lost, "--dry-run", "--json", code=5))
    assert (told["entries"], told["gone"]) == (200, [gone.id])

    (again, end) = objects(quire("cluster", "repair", *lost, "--rate", "1000", "--json", code=1))
    assert again["entries"] == plan["entries"] == end["entries"]
    assert (end["left"], end["gone_only"], set(end["outcomes"])) == ({}, 100, {"whole", "quiet"})
    assert gone.id not in members(quire, whole)
    assert gone.id in members(quire, halved)
    counts = objects(quire("ledger", "verify", "--all", "--json", code=5))[-1]
    assert counts["incomplete"] == 1

    shown = quire("ledger", "repair", halved, *lost, "--dry-run", code=1).stdout
    named = "".join(f"{line}\n" for line in shown.splitlines() if line.startswith(f"{halved} "))
    (tmp_path / "losses").write_text(f"{halved} 0..99\n")
    refused = quire(
        "ledger", "repair", halved, *lost, "--accept-loss", str(tmp_path / "losses"), "--json", code=1
    )
    assert "the file does not name them" in error_of(refused)["message"]
    (tmp_path / "losses").write_text(named)
    accepted = quire("ledger", "repair", halved, *lost, "--accept-loss", str(tmp_path / "losses"), "--json")
    assert [old for _, old, _ in objects(accepted)[0]["replaced"]] == [gone.id]
    assert gone.id not in members(quire, halved)

    second = objects(quire("cluster", "repair", *lost, "--json", code=0))
    assert second[1]["entries"] == 0


def test_with_as_many_bookies_as_places_one_is_missing(quire: Quire, cluster: LocalCluster) -> None:
    ledger = written(quire)
    cluster.kill(2)
    gone = cluster.bookies[2]
    said = quire("ledger", "repair", ledger, "--bookie", gone.id, code=5).stdout
    assert f"{gone.id}: it is gone, and no other bookie can take its place" in said
    # 1 where a ledger of an earlier test has entries that only this bookie had.
    (_, end) = objects(quire("cluster", "repair", "--bookie", gone.id, "--json", code=None))
    assert ledger in end["left"]
