"""The guard: its arithmetic, what it compares with, and that it says so when there is nothing."""

import subprocess

import pytest

import guard


@pytest.fixture(autouse=True)
def no_repository_above(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


def rounds(*pairs):
    return [({"100 B": ours, "all": ours}, {"100 B": theirs, "all": theirs}) for ours, theirs in pairs]


def test_the_change_is_the_median_of_the_pairs():
    assert guard.change_percent([2.0, 3.0, 10.0], [1.0, 3.0, 10.0]) == 0.0
    assert guard.change_percent([1.1, 1.1, 9.0], [1.0, 1.0, 1.0]) == pytest.approx(10.0)


@pytest.mark.parametrize(("ours", "fine"), [(0.5, True), (1.34, True), (1.36, False)])
def test_only_past_the_margin_does_it_fail(ours, fine):
    text, verdict = guard.verdict(rounds((ours, 1.0), (ours, 1.0)), "abc1234", margin=35.0)
    assert verdict is fine
    assert f"{ours:.2f} us CPU per entry, 1.00 us at abc1234" in text
    assert ("FAILED" in text) is not fine


def run(directory, *words):
    subprocess.run(["git", "-C", str(directory), *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """One commit that changes the source, then one that does not."""
    root = tmp_path / "repository"
    (root / "src/quire").mkdir(parents=True)
    run(tmp_path, "init", "--quiet", str(root))
    run(root, "config", "user.email", "a@b")
    run(root, "config", "user.name", "a")
    for name in ("src/quire/one.py", "src/quire/two.py", "README.md"):
        (root / name).write_text("")
        run(root, "add", name)
        run(root, "commit", "--quiet", "-m", name)
    return root


def test_a_changed_source_is_compared_with_the_last_commit(repository):
    (repository / "src/quire/one.py").write_text("x = 1\n")
    assert guard.last_commit(repository) == "HEAD"


def test_an_unchanged_source_is_compared_with_what_was_before_its_last_change(repository):
    base = guard.git(repository, "rev-parse", guard.last_commit(repository))
    assert base == guard.git(repository, "rev-parse", "HEAD~2")


def test_a_clone_without_history_has_nothing_to_compare_with(repository, tmp_path):
    clone = tmp_path / "clone"
    run(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", str(clone))
    with pytest.raises(guard.NothingToCompareError):
        guard.last_commit(clone)


def test_no_repository_and_no_guard(repository, tmp_path):
    with pytest.raises(guard.NothingToCompareError):
        guard.last_commit(tmp_path)
    with pytest.raises(guard.NothingToCompareError):
        guard.unpack(repository, "HEAD", tmp_path / "other")


def test_it_goes_on_without_a_comparison(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(guard, "one_round", lambda _: {"all": 5.0})
    assert guard.compare(tmp_path, pairs=1, margin=35.0) == 0
    assert "NOT COMPARED: no git repository here" in capsys.readouterr().out


def test_the_loop_runs(monkeypatch, tmp_path):
    """A short one, in this process: everything that is written comes back."""
    small = (guard.Part("a", 100, 200, 50), guard.Part("b", 1024, 5, 1))
    monkeypatch.setattr(guard, "WARM_UP", ())
    monkeypatch.setattr(guard, "PARTS", small)
    with guard.asyncio.Runner(loop_factory=guard.MemoryLoop) as runner:
        figures = runner.run(guard.run_loop(tmp_path))
    assert set(figures) == {"a", "b", "all"}
    assert all(figure > 0 for figure in figures.values())


def test_a_loop_whose_callback_fails_ends(monkeypatch, tmp_path):
    from quire.bookie.connections.connection import Connection

    def broken(*_):
        raise ValueError("broken")

    monkeypatch.setattr(Connection, "stored", broken)
    with (
        guard.asyncio.Runner(loop_factory=guard.MemoryLoop) as runner,
        pytest.raises(guard.asyncio.CancelledError),
    ):
        runner.run(guard.run_loop(tmp_path))
