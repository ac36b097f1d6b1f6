"""What crash images have shown once: each with the shortest run that shows it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.core.answers import Answer
from quire.env.real import RealFiles
from quire.storage.config import KIB
from quire.storage.formats.segment_format import BLOCK_BYTES
from quire_testing.crash.bookie_run import DIRECTORY, BookieRun, open_storage
from quire_testing.crash.campaign import Campaign
from quire_testing.crash.images import ImageBuilder
from quire_testing.crash.operations import Sync, SyncDirectory, Write
from quire_testing.crash.promises import KEY
from quire_testing.crash.recorder import RecordingFiles
from quire_testing.crash.workloads import ROLL_BYTES
from quire_testing.kit.disk import Stopped


def last_images(run: BookieRun, first_point: int, **counts: int) -> None:
    """All images from a point on keep what was promised."""
    campaign = Campaign(run.files.recording, config=run.config, capacity=run.memory.capacity, deep=0)
    result = campaign.run(first_point=first_point, **counts)
    assert result.broken == []
    assert result.images > 3


def test_a_torn_retirement_retires_nothing() -> None:
    """The group had lost the tombstone that it relocated from the segment that it retired."""
    run = BookieRun()
    run.add(2, 0, size=100)
    run.add(3, 0, size=100)
    for entry_id in range(9):
        run.add(4, entry_id, size=ROLL_BYTES)
        run.settle()
    run.explicit_lac(3, 0, more_bytes=1536)
    run.flush()
    run.delete(3)
    for entry_id in range(9, 20):
        run.add(4, entry_id, size=ROLL_BYTES)
        run.settle()
    run.delete(4)
    run.settle()
    before = len(run.files.recording.operations)
    assert run.reclaim() == 1
    run.settle()
    last_images(run, before, every=1 << 14)


def test_a_cut_while_the_start_after_a_clean_stop_is_written_is_no_damage() -> None:
    run = BookieRun()
    run.add(1, 0, size=10)
    run.settle()
    run.ledgers.save_lacs()
    run.storage.close()
    before = len(run.files.recording.operations)
    run.start()
    last_images(run, before, every=1 << 10)


def test_what_a_killed_process_wrote_is_synced_before_the_start_says_how_far_it_came() -> None:
    """It was read from the page cache, its end was written down, and a power cut then made a gap of it."""
    run = BookieRun()
    run.add(1, 0, size=10)
    run.settle()
    run.add(1, 1, size=3000)
    run.files.stop_at = run.files.steps + 2
    with pytest.raises(Stopped):
        run.flush()
    run.files.stop_at = None
    before = len(run.files.recording.operations)
    run.kill()
    last_images(run, before)


def test_names_that_a_killed_process_left_are_synced_before_the_files_are_used() -> None:
    """A retired segment's new name was not on the disk when its file got another segment's header."""
    run = BookieRun()
    for entry_id in range(11):
        run.add(1, entry_id, size=ROLL_BYTES)
        run.settle()
    run.delete(1)
    run.settle()
    run.files.stop_at = run.files.steps + 4
    with pytest.raises(Stopped):
        run.reclaim()
        run.settle()
    assert type(run.files.recording.operations[-1]).__name__ == "Rename"
    run.files.stop_at = None
    before = len(run.files.recording.operations)
    run.kill()
    last_images(run, before)


@pytest.mark.parametrize("finished", [True, False])
def test_starts_that_are_cut_again_and_again_do_not_use_up_a_full_disk(finished: bool) -> None:
    """Each start took a segment of the reserve of two: the third was refused."""
    capacity = 5 * 128 * KIB
    run = BookieRun(capacity=capacity)
    while run.add(1, len(run.answers), size=ROLL_BYTES) is Answer.OK:
        run.settle()
    files = run.memory
    for _ in range(6):
        recorder = RecordingFiles(files, DIRECTORY)
        open_storage(recorder)
        images = ImageBuilder(recorder.recording, every=1, sample=1)
        # Cut when all is done, or when the new segment has its name but not its first group.
        cuts = [image for image in images if finished or isinstance(image.after, SyncDirectory)]
        files = cuts[-1].files(capacity=capacity)


def test_a_start_that_goes_on_in_a_full_segment_says_where_its_records_end() -> None:
    """The segment had no room for its mark. The next one's list counted the gap in LSNs in: with the footer cut, a loss."""
    run = BookieRun(capacity=5 * 128 * KIB)
    while run.add(1, len(run.answers), size=ROLL_BYTES) is Answer.OK:
        run.settle()
    for size in (
        ROLL_BYTES,
        2000,
        0,
    ):  # recovery and then fences go on from the reserve, until not even a block is left
        run.answers.clear()
        while not run.answers or run.answers[-1][1] is Answer.OK:
            if size:
                run.add(1, 1000 + run.files.steps, size=size, recovery=True)
            else:
                run.fence(1000 + run.files.steps)
            run.settle()
    operations = run.files.recording.operations
    before = len(operations)
    run.kill()
    after = operations[before:]
    mark = next(at for at, one in enumerate(after) if isinstance(one, Write) and one.offset == BLOCK_BYTES)
    assert isinstance(after[mark + 1], Sync)
    last_images(run, before + mark + 2, every=1, sample=40)


def test_facts_that_a_full_disk_refused_are_put_again_with_the_next_entries() -> None:
    """The machine took them for stored: the ledger's entries were acknowledged, and denied after a restart."""
    run = BookieRun(capacity=6 * 128 * KIB)
    while run.add(1, len(run.answers), size=ROLL_BYTES) is Answer.OK:
        run.settle()
    sizes = [ROLL_BYTES, 1500]
    entry_id = 1000
    while sizes:
        entry_id += 1
        run.add(1, entry_id, size=sizes[0], recovery=True)
        run.settle()
        if run.answers[-1][1] is not Answer.OK:
            sizes.pop(0)
    run.add(7, 0, size=3000, recovery=True)
    run.settle()
    assert run.answers[-1][1] is Answer.ERROR
    run.memory.capacity = None
    run.storage.check_disk()
    run.add(7, 0, size=3000, recovery=True)
    run.settle()
    assert run.answers[-1][1] is Answer.OK
    facts = run.storage.facts(7)
    assert facts is not None
    assert facts.key == KEY
    run.kill()
    run.promises.check(run.storage)


def test_a_directory_that_is_there_is_synced_as_well(tmp_path: Path) -> None:
    """Whoever made it may have been killed before it came to that."""
    synced: list[Path] = []

    class Watched(RealFiles):
        def sync_directory(self, directory: Path) -> None:
            synced.append(directory)
            super().sync_directory(directory)

    Watched().make_directory(tmp_path / "a" / "b")
    assert synced == [tmp_path.parent, tmp_path, tmp_path / "a"]
    Watched().make_directory(tmp_path / "a" / "b")
    assert synced[3:] == [tmp_path / "a"]
    Watched().make_directory(tmp_path / "a" / "c")
    assert synced[4:] == [tmp_path, tmp_path / "a"]
