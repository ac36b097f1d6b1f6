"""Clusters by name, by path and by URI, and which of the ways to name one comes first."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from quire.cli.console.named_clusters import contexts_file, uri_of
from quire.cli.main import app
from quire.core.errors import NoClusterError

Quire = Callable[..., Result]


@pytest.fixture
def quire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Quire:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("QUIRE_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def made(quire: Quire, tmp_path: Path) -> Callable[[str], str]:
    """Makes the metadata store of a cluster in a directory of that name; its URI."""

    def make(name: str) -> str:
        (tmp_path / name).mkdir()
        uri = f"sqlite:{tmp_path / name / 'metadata.db'}"
        quire("metadata", "format", "--cluster", uri)
        return uri

    return make


def meant(quire: Quire, *before: str, after: tuple[str, ...] = ()) -> str:
    done = quire(*before, "cluster", "status", "--json", *after, code=5)  # it has no bookie
    return str(json.loads(done.stdout)["cluster"])


def test_the_option_comes_before_the_variable_and_that_before_the_context(
    quire: Quire, made: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_option, before, by_variable, by_context = map(made, ("a", "b", "c", "d"))
    quire("context", "add", "named", by_context, "--use")
    assert meant(quire) == by_context
    monkeypatch.setenv("QUIRE_CLUSTER", by_variable)
    assert meant(quire) == by_variable
    assert meant(quire, "--cluster", before) == before
    assert meant(quire, "--cluster", before, after=("--cluster", by_option)) == by_option
    assert meant(quire, after=("--cluster", "named")) == by_context
    assert meant(quire) == by_variable, "what one call names before the subcommand is not kept for the next"


def test_contexts_from_their_addition_to_their_removal(quire: Quire, made: Callable[[str], str]) -> None:
    uri = made("here")
    quire("context", "add", "one", "here")
    quire("context", "add", "two", "zk://user:secret@host:2181/ledgers")
    assert "exists" not in quire("context", "add", "one", uri).output, "the same again is no conflict"
    assert "--replace" in quire("context", "add", "one", "zk://other/x", code=1).stderr
    quire("context", "use", "one")
    shown = quire("context", "list", "--json").stdout
    assert "secret" not in shown + quire("context", "list").stdout
    rows = [json.loads(line) for line in shown.splitlines()]
    assert [(row["name"], row["cluster"], row["in_use"]) for row in rows] == [
        ("one", uri, True),
        ("two", "zk://user:***@host:2181/ledgers", False),
    ]
    assert stat.S_IMODE(contexts_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(contexts_file().parent.stat().st_mode) == 0o700
    quire("context", "use", "--none")
    quire("cluster", "status", code=1)
    quire("context", "use", "one")
    quire("context", "remove", "one")
    quire("cluster", "status", code=1)
    assert "the contexts: two" in quire("context", "use", "one", code=2).stderr
    assert "cannot name a context" in quire("context", "add", "a/b", uri, code=2).stderr


def test_a_variable_that_comes_first_is_said(quire: Quire, monkeypatch: pytest.MonkeyPatch) -> None:
    quire("context", "add", "one", "zk://host/ledgers")
    monkeypatch.setenv("QUIRE_CLUSTER", "sqlite:/elsewhere")
    assert "QUIRE_CLUSTER is set" in quire("context", "use", "one").stderr


def test_a_path_names_the_cluster_that_lies_there(
    quire: Quire, made: Callable[[str], str], tmp_path: Path
) -> None:
    uri = made("data")
    for text in ("data", "./data", str(tmp_path / "data"), "data/metadata.db"):
        assert uri_of(text) == uri
    (tmp_path / "joined").mkdir()
    (tmp_path / "joined" / "bookies.json").write_text('{"bookies": [], "cluster": "zk://host/ledgers"}')
    assert uri_of("joined") == "zk://host/ledgers"
    (tmp_path / "empty").mkdir()
    for text, words in (
        ("empty", "holds no metadata.db"),
        ("./none", "does not exist"),
        ("none", "names no"),
    ):
        with pytest.raises(NoClusterError, match=words):
            uri_of(text)


def test_a_context_means_the_same_cluster_in_every_directory(
    quire: Quire, made: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = made("data")
    for text in (
        "sqlite:data/metadata.db",
        "sqlite://data/metadata.db",
        uri,
        "zk://host/ledgers",
        "sqlite:~/x",
    ):
        quire("context", "add", "here", text, "--replace", "--use")
        kept = json.loads(quire("context", "list", "--json").stdout)["cluster"]
        assert kept == (uri if "data" in text else text)
    quire("context", "add", "here", "sqlite:data/metadata.db", "--replace", "--use")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert meant(quire) == uri


def test_a_name_comes_before_a_directory_of_the_same_name(quire: Quire, made: Callable[[str], str]) -> None:
    uri = made("same")
    quire("context", "add", "same", "etcd://host:2379/ledgers")
    assert uri_of("same") == "etcd://host:2379/ledgers"
    assert uri_of("./same") == uri


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"clusters": []}', '{"clusters": null}', '{"clusters": {}, "current": []}']
)
def test_a_damaged_file_is_named(quire: Quire, text: str) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().write_text(text)
    said = quire("cluster", "status", code=1).stderr
    assert str(contexts_file()) in said
    assert "is damaged" in said


def test_names_complete(quire: Quire) -> None:
    quire("context", "add", "production", "zk://host/ledgers")
    environment = {
        "_QUIRE_COMPLETE": "complete_bash",
        "COMP_WORDS": "quire context use pro",
        "COMP_CWORD": "3",
    }
    done = CliRunner(env=environment).invoke(app, [], prog_name="quire")
    assert done.stdout.split() == ["production"]
