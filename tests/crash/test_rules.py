"""What a power cut may leave of a few operations, counted and looked at one by one; and the pytest plugin."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quire.env.real import RealFiles
from quire_testing.crash import ImageBuilder, MemoryFiles, RecordingFiles
from quire_testing.crash.pytest_plugin import CrashRecorder, PowerCutError

ROOT = Path("/recorded")
FILE = ROOT / "file"


def recorder(files=None):
    """Files with one file of a sector of "a", all on the disk."""
    below = files or MemoryFiles()
    below.make_directory(ROOT)
    below.write_whole(FILE, b"a" * 512)
    return RecordingFiles(below, ROOT)


def contents(files, *, path=FILE, point=None, every=1000):
    """What the file may hold: of all images, or of those at one point."""
    found = set()
    for image in ImageBuilder(files.recording, every=every):
        if point is None or image.point == point:
            held = image.files()
            found.add(held.read_whole(path) if held.exists(path) else None)
    return found


def written(files, data, offset=0, *, direct=False):
    file = files.open_to_write(FILE, direct=direct)
    file.write_at(data, offset)
    return file


def names(found):
    """Which of the letters a file may consist of, per sector; other bytes are garbage."""
    return {
        "".join(
            chr(one[at]) if one[at : at + 512] == one[at : at + 1] * 512 else "?"
            for at in range(0, len(one), 512)
        )
        for one in found
    }


def test_a_sector_on_its_way_is_old_new_zeros_or_garbage() -> None:
    files = recorder()
    written(files, b"b" * 512)
    assert names(contents(files)) == {"a", "b", "\0", "?"}


def test_a_sync_makes_it_certain() -> None:
    files = recorder()
    written(files, b"b" * 512).sync()
    assert names(contents(files, point=2)) == {"b"}


def test_sectors_arrive_in_any_order_and_a_length_on_its_own() -> None:
    files = recorder()
    written(files, b"b" * 1024)
    found = names(contents(files))
    assert {"ab", "b", "bb", "a\0", "b\0", "?b"} <= found
    assert len(found) == 4 * 3 + 4  # with the new length: four by new, zeros, garbage; with the old one: four


def test_of_two_writes_either_may_be_there() -> None:
    files = recorder()
    written(files, b"b" * 512)
    written(files, b"c" * 512)
    assert names(contents(files)) == {"a", "b", "c", "\0", "?"}


def test_a_part_of_a_sector_keeps_the_rest() -> None:
    files = recorder()
    written(files, b"b" * 6, 509)
    assert b"a" * 509 + b"bbb" + b"bbb" in contents(files)
    assert all(
        one[:10] in {b"a" * 10, bytes(10)} or not set(one[:10]) <= set(b"a\0") for one in contents(files)
    )


def test_a_direct_write_is_certain_when_it_returns_and_torn_before() -> None:
    files = recorder()
    written(files, b"b" * 512, direct=True)
    assert names(contents(files, point=0)) == {"a", "b", "\0", "?"}
    assert names(contents(files, point=1)) == {"b"}


class Failing(MemoryFiles):
    """One sync fails."""

    def open_to_write(self, path, *, direct):
        file = super().open_to_write(path, direct=direct)

        class File:
            fails = True
            write_at = file.write_at

            def sync(self):
                if self.fails:
                    self.fails = False
                    raise OSError(errno.EIO, "injected")

        return File()


def test_after_a_failed_sync_the_next_one_makes_nothing_certain_that_was_dirty() -> None:
    files = recorder(Failing())
    file = files.open_to_write(FILE, direct=False)
    file.write_at(b"b" * 512, 0)
    with pytest.raises(OSError, match="injected"):
        file.sync()
    file.write_at(b"c" * 512, 512)
    file.sync()
    assert names(contents(files, point=4)) == {"ac", "bc", "\0c", "?c"}
    file.write_at(b"d" * 512, 0)
    file.sync()
    assert names(contents(files, point=6)) == {"dc"}


def test_names_may_be_undone_one_by_one_until_their_directory_is_synced() -> None:
    files = recorder()
    files.rename(FILE, ROOT / "other")
    files.create(ROOT / "new").close()
    found = {tuple(image.files().names(ROOT)) for image in ImageBuilder(files.recording)}
    assert found == {("file",), ("other",), ("file", "new"), ("new", "other")}
    files.sync_directory(ROOT)
    point = len(files.recording.operations)
    last = [image for image in ImageBuilder(files.recording) if image.point == point]
    assert [tuple(image.files().names(ROOT)) for image in last] == [("new", "other")]


def test_a_removed_file_may_be_back() -> None:
    files = recorder()
    files.remove(FILE)
    assert contents(files) == {None, b"a" * 512}


def test_nothing_is_found_without_its_directory() -> None:
    files = recorder()
    files.make_directory(ROOT / "below")
    files.write_whole(ROOT / "below" / "file", b"x")
    lost = [image for image in ImageBuilder(files.recording) if not image.files().exists(ROOT / "below")]
    assert lost
    assert not any(image.files().exists(ROOT / "below" / "file") for image in lost)


def test_a_mark_comes_with_the_images_after_it_and_a_weakening_one_has_images_before_it() -> None:
    files = recorder()
    written(files, b"b" * 512).sync()
    files.milestone("stored")
    files.milestone("deleting", weakens=True)
    files.remove(FILE)
    told = {image.events for image in ImageBuilder(files.recording)}
    assert told == {(), ("stored",), ("stored", "deleting")}


def test_large_writes_are_sampled_and_a_seed_gives_the_same_again() -> None:
    files = recorder()
    written(files, b"b" * 512 * 100)
    one, again, other = (
        [image.choice for image in ImageBuilder(files.recording, sample=50, seed=seed)] for seed in (1, 1, 2)
    )
    assert one == again != other
    assert len(one) == 51  # and the state before the write


def test_images_share_what_nobody_changed_and_a_restart_does_not_change_them() -> None:
    files = recorder()
    written(files, b"b" * 512)
    image = list(ImageBuilder(files.recording))[-1]
    before = image.files().read_whole(FILE)
    image.files().open_to_write(FILE, direct=False).write_at(b"zzz", 100)
    assert image.files().read_whole(FILE) == before


def test_real_files_are_recorded_as_they_were_found(tmp_path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "one").write_bytes(b"1")
    files = RecordingFiles(RealFiles(), tmp_path)
    files.write_whole(tmp_path / "two", b"2")
    files.remove(tmp_path / "below" / "one")
    files.create(tmp_path / "three").write_at(b"3", 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["below", "three", "two"]
    images = list(ImageBuilder(files.recording))
    ends = [image for image in images if image.point == len(files.recording.operations)]
    restored = tmp_path.parent / "restored"
    everything = next(image for image in ends if not any(image.choice[2]) and image.choice[1] == (False,))
    everything.write_to(restored, tmp_path)
    assert (restored / "below" / "one").read_bytes() == b"1"
    assert (restored / "two").read_bytes() == b"2"
    assert not (restored / "three").exists()


# --- the plugin ---------------------------------------------------------------------------------------------------


def save(files, path, data, *, directory_too):
    """The usual way to replace a small file."""
    temporary = path.with_suffix(".new")
    file = files.create(temporary)
    file.write_at(data, 0)
    file.sync()
    file.close()
    files.rename(temporary, path)
    if directory_too:
        files.sync_directory(path.parent)


@pytest.mark.parametrize("directory_too", [True, False])
def test_a_rename_without_a_sync_of_its_directory_is_found(directory_too) -> None:
    recorded = CrashRecorder()
    path = recorded.directory / "settings"
    for data in (b"one", b"two"):
        save(recorded.files, path, data, directory_too=directory_too)
        recorded.milestone(data)

    def judge(files, told):
        if told:
            assert files.exists(path), "the settings are gone"
            assert files.read_whole(path) in {told[-1], b"two"}, "the settings are old"

    if directory_too:
        assert recorded.check(judge) > 20
    else:
        with pytest.raises(PowerCutError, match=r"undone: rename .*settings"):
            recorded.check(judge)


def test_the_fixture_is_a_plugin(tmp_path) -> None:
    (tmp_path / "test_one.py").write_text(
        "def test_one(crash_recorder):\n"
        "    crash_recorder.files.write_whole(crash_recorder.directory / 'a', b'x')\n"
        "    assert crash_recorder.check(lambda files, told: None) > 3\n"
    )
    plugin = ["-p", "quire_testing.crash.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    assert pytest.main([*plugin, "-q", "-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]) == 0
