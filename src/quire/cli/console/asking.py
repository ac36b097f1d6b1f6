"""Questions before what destroys data or ends a writer: asked at a terminal, refused without one, answered by `--yes`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from quire.cli.console.options import option
from quire.core.errors import MisuseError, RefusedError

YesOption = Annotated[bool, option("--yes -y", "Do not ask.")]


class DeclinedError(RefusedError):
    """The answer to a question was no."""

    code = "declined"


def can_ask() -> bool:
    """Whether a person can answer: standard input is a terminal."""
    try:
        return sys.stdin.isatty()
    except ValueError:  # it is closed
        return False


def confirm(question: str, why: str, *, yes: bool) -> None:
    """Ask before something is destroyed or a writer is ended. Call it outside an event loop: it waits for a person.

    Args:
        question: ends with a question mark; no is the default answer.
        why: a sentence without its full stop, for callers that cannot be asked.
        yes: the option `--yes`: nothing is asked.

    Raises:
        MisuseError: standard input is no terminal, and there is no `--yes`.
        DeclinedError: the answer is no.
        typer.Abort: Ctrl-C, or the end of the input.
    """
    if yes:
        return
    if not can_ask():
        raise MisuseError(f"{why}: give --yes when the command cannot ask.")
    if not typer.confirm(question, err=True):
        raise DeclinedError("The answer was no: nothing was done.")
