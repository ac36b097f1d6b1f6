"""What every command says of itself: a whole summary, examples that parse, the version, both names of help."""

import re
import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.cli.console.examples import EXAMPLES
from quire.cli.main import app
from support.commands import every_command, help_of, root

COMMANDS = every_command()


def test_each_command_has_a_summary_in_its_list_and_an_example() -> None:
    for words, command in COMMANDS.items():
        shown = " ".join(help_of(*words[:-1]).split())
        summary = " ".join((command.help or "").split("\n\n")[0].split())
        assert summary, words
        assert summary in shown, f"the list shows all of {words}"
        if words != ("spark", "run"):  # its help lists the jobs
            assert f"  Examples:\n    {EXAMPLES[' '.join(words)][0]}\n" in help_of(*words) + "\n"


def test_both_names_of_help_are_known_to_groups_and_commands() -> None:
    for words in ((), ("cluster",), ("cluster", "health")):
        texts = {CliRunner().invoke(app, [*words, option]).stdout for option in ("-h", "--help")}
        assert len(texts) == 1
        assert "-h, --help" in texts.pop()


def test_each_example_is_a_command_line_that_parses() -> None:
    for line in (line for lines in EXAMPLES.values() for line in lines):
        for part in re.split(r"\|\|?", line):
            words = shlex.split(re.split(r"[<>]", part)[0])
            if words[0] == "quire":
                parse(root(), words)


def parse(command: Any, words: list[str]) -> None:
    context = command.make_context(words[0], words[1:])
    rest = [*context._protected_args, *context.args]
    while hasattr(command, "commands") and rest:
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, list(rest), parent=context)
        rest = [*getattr(context, "_protected_args", ()), *context.args]


def test_no_example_is_of_a_command_that_is_gone() -> None:
    assert {tuple(words.split()) for words in EXAMPLES} <= set(COMMANDS)


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.startswith(f"quire {quire.__version__} (Python 3.")


def test_a_completion_script_is_shown_for_each_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # the shell is named instead
    for shell in ("bash", "zsh", "fish"):
        done = CliRunner().invoke(app, ["--show-completion", shell], prog_name="quire")
        assert "_QUIRE_COMPLETE" in done.stdout
