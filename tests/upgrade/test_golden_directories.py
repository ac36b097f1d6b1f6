"""Bookies' directories of revision 9e5fe3a: everything comes back as the old program told it, byte for byte."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.env.real import RealFiles
from quire.storage.config import StorageConfig
from quire.storage.directory.identity import open_identity
from quire.storage.ledger_storage import LedgerStorage
from quire_testing.kit.stepped import StepClock, StepWorker
from support.golden import BOOKIE, CLUSTER, FOLDER, facts_told, told, unpack

DIRECTORIES = json.loads((FOLDER / "directories.json").read_text())
CONFIG = StorageConfig(segment_bytes=128 * 1024, group_bytes_max=16 * 1024, recent_bytes_max=0, direct=False)


@contextmanager
def opened(directory: Path, *, clean: bool = True) -> Iterator[LedgerStorage]:
    chance, files = random.Random(9), RealFiles()
    identity = open_identity(directory, BOOKIE, CLUSTER, files=files, chance=chance)
    storage = LedgerStorage.open(
        directory,
        CONFIG,
        identity,
        files=files,
        worker=StepWorker(),
        clock=StepClock(1_000_000),
        chance=chance,
        served=True,
    )
    try:
        yield storage
    finally:
        storage.close(clean=clean)
        identity.release()


def ids(entries: dict[str, str | None]) -> dict[int, str | None]:
    return {int(number): digest for number, digest in entries.items()}


def compare(storage: LedgerStorage, ledger_id: int, expected: dict[str, Any], *, decided: bool) -> int:
    """One ledger; how many entries were compared. `decided`: nothing was left to the judgement of this start."""
    found = told(storage, ledger_id, expected["asked_through"])
    was = ids(expected["entries"])
    there = {number: digest for number, digest in was.items() if digest}
    assert {number: found.get(number) for number in there} == there
    if not decided and expected["suspects"]:
        # A later start may say more exactly what may be lost; it denies nothing up to the last entry that was held.
        assert all(number in found for number in was if number <= expected["last_entry"])
        return len(there)
    assert found == was
    assert storage.suspects(ledger_id) == expected["suspects"]
    assert storage.last_entry(ledger_id) == expected["last_entry"]
    assert [list(held[:4]) for held in storage.held(ledger_id)] == expected["held"]
    facts = facts_told(storage.facts(ledger_id))
    if expected["suspects"] and facts is not None and not facts["fenced"]:
        facts["fenced"] = expected["facts"][
            "fenced"
        ]  # version 1 took a fence that may be lost for one that is set
    assert facts == expected["facts"]
    return len(there)


def compare_all(storage: LedgerStorage, expected: dict[str, Any], *, decided: bool) -> int:
    return sum(
        compare(storage, int(ledger_id), ledger, decided=decided)
        for ledger_id, ledger in expected["ledgers"].items()
    )


@pytest.mark.parametrize("name", DIRECTORIES)
def test_everything_comes_back(name: str, tmp_path: Path) -> None:
    expected = DIRECTORIES[name]
    decided = not expected["decided_by_start"]
    directory = unpack(FOLDER / f"directory-{name}.tar.xz", tmp_path / "bookie")
    with opened(directory) as storage:
        report = storage.report
        assert report.clean == expected["clean"]
        assert len(report.torn) == expected["torn"]
        assert report.suspects_unknown == expected["suspects_unknown"]
        assert compare_all(storage, expected, decided=decided) > 300
        assert [[each.ledger_id, each.first, each.last] for each in storage.damages.kept] == expected[
            "damages"
        ]
    # What it wrote down itself, in the newest format, beside what was there.
    with opened(directory, clean=False) as storage:
        assert storage.report.clean
        compare_all(storage, expected, decided=decided)
    with opened(directory) as storage:
        compare_all(storage, expected, decided=decided)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_their_tombstones_shrink(name: str, tmp_path: Path) -> None:
    ledgers = DIRECTORIES[name]["ledgers"]
    deleted = {
        int(ledger_id): one["facts"]["deleted_until_ms"]
        for ledger_id, one in ledgers.items()
        if one["facts"] and one["facts"]["deleted_until_ms"]
    }
    directory = unpack(FOLDER / f"directory-{name}.tar.xz", tmp_path / "bookie")
    with opened(directory) as storage:
        assert list(storage.housekeeping.shrink_tombstones(min(deleted.values()) - 1)) == []
        gone = [one for some in storage.housekeeping.shrink_tombstones(max(deleted.values())) for one in some]
        assert sorted(gone) == sorted(deleted)
    with opened(directory, clean=False) as storage:
        for ledger_id, one in ledgers.items():
            if int(ledger_id) in deleted:
                assert storage.last_entry(int(ledger_id)) == -1
                assert not storage.held(int(ledger_id))
            elif not DIRECTORIES[name]["decided_by_start"]:
                compare(storage, int(ledger_id), one, decided=True)


def test_they_hold_what_a_disk_can_hold() -> None:
    """The files are about something: each kind of trouble is in one of them."""
    by_name = {name: facts["ledgers"] for name, facts in DIRECTORIES.items()}
    clean = [ledger["facts"] for ledger in by_name["clean"].values() if ledger["facts"]]
    assert any(facts["fenced"] and not facts["limbo"] for facts in clean)
    assert any(facts["limbo"] for facts in clean)
    assert any(facts["explicit_lac"] for facts in clean)
    assert any(facts["deleted_until_ms"] for facts in clean)
    assert any(held[2] > 1 for ledger in by_name["clean"].values() for held in ledger["held"])
    assert DIRECTORIES["killed"]["torn"] == 1
    assert DIRECTORIES["suspicious"]["suspects_unknown"]
    assert DIRECTORIES["damaged"]["damages"]
