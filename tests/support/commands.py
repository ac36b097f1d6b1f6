"""Every command that the command line has, found where it is composed: a new one is tested by itself."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import typer.main
from typer.testing import Result

from quire.cli.main import app

Quire = Callable[..., Result]
"""The fixture `quire` of the tests of commands."""


def objects(result: Result) -> list[dict[str, Any]]:
    """What a command said with `--json`."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def error_of(result: Result) -> dict[str, Any]:
    """The error that it ended with, likewise."""
    text = result.stdout if '"error"' in result.stdout else result.stderr
    found: dict[str, Any] = json.loads(text.splitlines()[-1])["error"]
    return found


@cache
def root() -> Any:
    """The command line, built once."""
    return typer.main.get_command(app)


@cache
def every_command() -> dict[tuple[str, ...], Any]:
    """The commands, by the words that call them, without former names that still work."""
    found: dict[tuple[str, ...], Any] = {}

    def walk(group: Any, before: tuple[str, ...]) -> None:
        for name, command in group.commands.items():
            words = (*before, name)
            if hasattr(command, "commands"):
                walk(command, words)
            elif not command.hidden:
                found[words] = command
            if hasattr(command, "commands") and command.invoke_without_command:
                found[words] = command

    walk(root(), ())
    return found


def help_of(*words: str) -> str:
    """What `--help` shows of a command or a group of them."""
    context = root().make_context("quire", [], resilient_parsing=True)
    command = root()
    for name in words:
        command = command.commands[name]
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    return str(command.get_help(context))
