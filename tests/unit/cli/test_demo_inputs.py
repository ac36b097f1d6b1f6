"""The demo's inputs against their independent truths."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from quire.cli.console.failures import VerificationError
from quire.cli.demo import bulk, git_history, needed, under_fire
from quire.cli.demo.git_history import NameSpace, NotUsableError, TreeEdit
from quire.cli.demo.stdlib_repository import make_repository
from quire.cli.demo.story import prepared
from quire.core.errors import WrongDirectoryError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    strange = ["plain", "with space", "with\nnewline", ":colon", "commit 123", "tab\there", "ümlaut"]
    for number, name in enumerate(strange):
        (root / name).write_text(f"{number}\n" * 10)
    git("add", "-A")
    git("commit", "-qm", "first")
    (root / "plain").write_text("changed\n")
    (root / "with space").unlink()
    (root / "link").symlink_to("plain")
    git("add", "-A")
    git("commit", "-qm", "second")
    git("checkout", "-qb", "side", "HEAD~1")
    (root / "side").write_text("from the side\n")
    git("add", "-A")
    git("commit", "-qm", "side")
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    (root / "link").unlink()
    (root / "link").write_text("a file now\n")
    git("commit", "-qam", "type change")
    return root


def test_replay_equals_the_tree_at_every_commit(repository: Path) -> None:
    edits = git_history.read_edits(repository)
    commits = list(dict.fromkeys(edit.commit for edit in edits))
    assert len(commits) == 4
    for commit in commits:
        last = max(place for place, edit in enumerate(edits) if edit.commit == commit)
        state = git_history.replay(edits[: last + 1])
        assert state.paths == git_history.tree_at(repository, commit)


def test_snapshot_plus_tail_equals_the_whole(repository: Path) -> None:
    edits = git_history.read_edits(repository)
    commit, count = git_history.middle_commit(edits)
    early = git_history.replay(edits[:count])
    assert early.paths == git_history.tree_at(repository, commit)
    again = git_history.replay(edits[count:], NameSpace.from_snapshot(early.snapshot()))
    assert again.paths == git_history.tree_at(repository, "HEAD")


def test_an_edit_survives_its_encoding(repository: Path) -> None:
    for edit in git_history.read_edits(repository):
        assert TreeEdit.decode(edit.path, edit.encode()) == edit


def test_a_doubled_or_lost_edit_is_noticed(repository: Path) -> None:
    edits = git_history.read_edits(repository)
    with pytest.raises(VerificationError, match="exists already"):
        git_history.replay([edits[0], *edits])
    with pytest.raises(VerificationError, match="does not exist"):
        git_history.replay([edit for edit in edits if edit.path != b"plain" or edit.action != "create"])


def test_a_short_history_is_refused_with_its_size(repository: Path) -> None:
    with pytest.raises(NotUsableError, match="only 12 events"):
        git_history.usable_edits(repository)


def test_a_shallow_clone_is_refused(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{repository}", clone], check=True, capture_output=True
    )
    with pytest.raises(NotUsableError, match="shallow"):
        git_history.usable_edits(clone)


def test_a_place_outside_any_repository_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotUsableError, match="rev-parse"):
        git_history.repository_of(tmp_path)


def test_the_repository_of_a_place_inside_it(repository: Path) -> None:
    (repository / "sub").mkdir()
    assert git_history.repository_of(repository / "sub") == repository.resolve()


def test_a_repository_made_from_a_tree_replays(tmp_path: Path) -> None:
    root = bulk.library_root()
    files = [
        path
        for path in bulk.source_files(root)
        if path.relative_to(root).parts[0] in {"json", "email", "wsgiref"}
    ]
    made = make_repository(tmp_path / "made", root, files)
    edits = git_history.read_edits(made)
    assert {edit.action for edit in edits} == {"create", "modify", "delete"}
    assert git_history.replay(edits).paths == git_history.tree_at(made, "HEAD")
    truth = {str(path.relative_to(root)).encode() for path in files}
    assert set(git_history.tree_at(made, "HEAD")) == truth
    assert make_repository(tmp_path / "made", root, []) == made


def test_lines_put_together_again_have_the_files_digests(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    contents = {
        "a.py": b"one\ntwo\n",
        "pkg/b.py": b"no line feed at the end",
        "pkg/empty.py": b"",
        "pkg/odd.py": b"\r\n\x0c\xff\xfe\n\n",
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_bytes(b"not ours\n")
    files = bulk.source_files(tmp_path)
    together: dict[str, bytes] = {}
    for line in bulk.lines_of(tmp_path, files):
        together[line.key.decode()] = together.get(line.key.decode(), b"") + line.value
    seen = {name: hashlib.sha256(data).hexdigest() for name, data in together.items()}
    truth = bulk.digests_of(tmp_path, files)
    assert sorted(truth) == ["a.py", "pkg/b.py", "pkg/odd.py"]
    assert bulk.differences(truth, seen) == []
    seen["a.py"] = "0" * 64
    del seen["pkg/b.py"]
    seen["new.py"] = "1" * 64
    assert bulk.differences(truth, seen) == [
        f"a.py differs: 000000000000 instead of {truth['a.py'][:12]}",
        "new.py was never written",
        "pkg/b.py is missing",
    ]


def test_the_demos_directory_is_its_users(tmp_path: Path) -> None:
    directory = tmp_path / "cache" / "demo"
    with prepared(directory):
        assert {path.stat().st_mode & 0o777 for path in (directory, directory.parent)} == {0o700}
    directory.chmod(0o755)
    with prepared(directory):
        assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_demo_directory_that_another_user_made_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    directory = tmp_path / "demo"
    directory.mkdir()
    os.chown(directory, 65534, 65534)
    with pytest.raises(WrongDirectoryError, match="belongs to user 65534"), prepared(directory):
        pass


def test_what_is_missing_is_said_before_the_demo_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(needed.MissingError) as caught:
        needed.check(tmp_path / "demo")
    assert "git is not installed" in caught.value.message
    assert "Java is not on the PATH" in caught.value.message
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(needed.MissingError, match="is version 11, and Spark needs 17 or 21"):
        needed.check(tmp_path / "demo")


@pytest.mark.parametrize("records", [1, 2, 3, 9, 10, 11, 100])
def test_the_writer_is_killed_before_it_may_have_ended(records: int) -> None:
    bulk = under_fire.Bulk(Path("/"), [], records, 1)
    assert 1 <= bulk.share(3) <= bulk.share(5) <= bulk.share(6) <= bulk.hold_at
    assert bulk.hold_at < records or records == 1
