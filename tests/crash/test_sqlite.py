"""SQLite as we use it: every acknowledged change of the metadata survives a killed process and a power cut, none by half.

And after none of these does the store take itself for one that went back: the file of its sequence is never ahead.
"""

from __future__ import annotations

import random
import shutil

import pytest

from quire.metadata.sqlite.file import SqliteFile
from quire.metadata.sqlite.sequence import SequenceFile, newest_of
from quire.metadata.sqlite.store import SqliteStore
from quire_testing.crash import ImageBuilder
from support.rounds import rounds
from support.sqlite_disk import SqliteRecorder, warnings
from support.sqlite_inside import file_of, on_its_thread
from support.sqlite_writer import change, killed_writer

pytestmark = pytest.mark.long
CHANGES = 6
RETURN = "accept-store"
SEED = 20261121


async def set_pragma(store, text):
    await on_its_thread(store, lambda: file_of(store)._connection.execute(f"PRAGMA {text}"))


async def settle(store, *, empty, ahead=0):
    """What the store does a second after a commit; with `empty`, the -wal too."""
    file = file_of(store)

    def work():
        progress = file.progress
        return file.sequence.raise_to(progress._replace(revision=progress.revision + ahead))

    assert await on_its_thread(store, work)
    if empty:
        assert await on_its_thread(store, file.log.empty)


async def live(path, recorder, *pragmas, early=False):
    """A store that is made, changed, closed, opened and changed again, with checkpoints in between."""
    number = 0
    for create in (True, False):
        store = await SqliteStore.open(path, create=create)
        for one in ("wal_autocheckpoint = 16", *pragmas):
            await set_pragma(store, one)
        recorder.milestone(("instance", store.instance_id))
        for _ in range(CHANGES):
            number += 1
            if early:
                await settle(store, empty=False, ahead=1)
            await change(store, number)
            recorder.milestone(("changed", number))
            recorder.milestone(("id", await store.next_ledger_id()))
            await settle(store, empty=number % 4 == 3)
            recorder.milestone(("settled", number))
        await store.close()


def judge(path, told):
    """What is wrong with a metadata file, after all that callers were told."""
    known = dict(told)  # the last of each kind
    slots = SequenceFile(path).read()
    with warnings() as logged:
        file = SqliteFile(path, create="instance" not in known)
    try:
        assert not logged
        assert "settled" not in known or newest_of(slots, known["instance"]), "no sequence"
        assert file._one("PRAGMA integrity_check") == "ok"
        if "instance" in known:
            assert file.instance_id == known["instance"]
        rows = [file.get(key) for key in ("a", "b")]
        numbers = [int(row.value.split()[0]) if row else 0 for row in rows]
        assert numbers[0] == numbers[1], "half a transaction"
        assert (file.get("c") is not None) == bool(numbers[0] % 2), "half a transaction"
        acknowledged = known.get("changed", 0)
        assert numbers[0] in {acknowledged, acknowledged + 1}, f"{acknowledged} was acknowledged"
        file.begin()
        assert file.reserve_ledger_ids(1)[0] > known.get("id", 0), "an id is given away twice"
        file.rollback()
    finally:
        file.close()


async def broken(tmp_path, *pragmas, early=False, enough=None, **how):
    """(how many images, what is wrong with them); with `enough`, until that was said of one."""
    home = tmp_path / "recorded"
    home.mkdir()
    recorder = SqliteRecorder(home)
    with recorder:
        await live(home / "metadata.db", recorder, *pragmas, early=early)
    images, found = 0, []
    for image in ImageBuilder(recorder.recording, seed=SEED, **how):
        directory = tmp_path / "image"
        directory.mkdir()
        image.write_to(directory, home)
        try:
            judge(directory / "metadata.db", image.events)
        except Exception as error:
            found.append(f"{image}: {type(error).__name__}: {error}")
        shutil.rmtree(directory)
        images += 1
        if enough and found and enough in found[-1]:
            break
    return images, found


async def test_what_was_acknowledged_survives_a_power_cut(tmp_path) -> None:
    images, found = await broken(
        tmp_path, powersafe=True, every=rounds(4, 64), sample=rounds(4, 64), points=rounds(2, 1)
    )
    print(f"{images} images")
    assert found == []
    assert images > 100


@pytest.mark.parametrize(
    ("pragmas", "powersafe"), [(("synchronous = NORMAL",), True), ((), False)], ids=["sync", "sector"]
)
async def test_what_is_relied_on_is_missed(tmp_path, pragmas, powersafe) -> None:
    """A commit that is not synced is lost; and a disk that spoils the rest of a sector spoils the commit before.

    The store says so itself when it is opened: it holds less than its sequence.
    """
    _, found = await broken(tmp_path, *pragmas, enough=RETURN, powersafe=powersafe, every=4, sample=8)
    assert RETURN in found[-1]


async def test_a_sequence_that_is_written_before_its_commit_is_a_false_alarm(tmp_path) -> None:
    _, found = await broken(tmp_path, early=True, enough=RETURN, powersafe=True, every=8, sample=4)
    assert RETURN in found[-1]


@pytest.mark.faults
async def test_what_was_acknowledged_survives_killed_processes(tmp_path) -> None:
    """SIGKILL in the middle of whatever it is; this process has the file open all the time, the next one opens it anew."""
    chance = random.Random(SEED)
    path = tmp_path / "metadata.db"
    number, ids = 0, set()
    async with await SqliteStore.open(path, create=True) as beside:
        for _ in range(rounds(6, 100)):
            told = killed_writer(path, number, chance.randint(1, 20))
            given = [ledger_id for _, ledger_id in told]
            assert given
            assert ids.isdisjoint(given)
            ids.update(given)
            texts = [int((await beside.get(key)).value.split()[0]) for key in ("a", "b")]
            assert texts[0] == texts[1]
            assert texts[0] in {told[-1][0], told[-1][0] + 1}
            judge(path, [("instance", beside.instance_id), ("changed", told[-1][0]), ("id", max(ids))])
            number = texts[0]
