"""What the command line has only where the package `quire_testing` is installed, and what it says where it is not.

`quire` does not need that package; this file and `quire bench --history` are the only places that look for it.

Source: `docs/decisions/033-one-room-for-testing.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from quire.core.errors import MisuseError

PACKAGE: Final = "quire_testing"
ABSENT: Final = {
    "check": "Explore the shipped state machines in a small world (in the package quire-testing).",
    "simulate": "Run the real programs in a simulated world (in the package quire-testing).",
    "verify-history": "Judge recorded histories (in the package quire-testing).",
}
"""The commands of that package, and their help where it is not installed."""


@contextmanager
def needed(command: str) -> Iterator[None]:
    """Imports from `quire_testing` stand inside this: where it is absent, say what to install.

    Args:
        command: what the user asked for, as on the command line.

    Raises:
        MisuseError: the package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != PACKAGE:
            raise
        msg = (
            f"`{command}` is in the package quire-testing, which is not installed: pip install quire-testing."
        )
        raise MisuseError(msg) from error


def add_commands(app: typer.Typer) -> None:
    """Add `check`, `simulate` and `verify-history`; where their package is absent, commands that say what to install.

    Args:
        app: the root of the command line.
    """
    try:
        with needed("quire check"):
            from quire_testing import commands
    except MisuseError:
        for name, text in ABSENT.items():
            app.command(
                name,
                help=text,
                context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
            )(_absent)
        return
    app.command("check")(commands.check)
    app.command("simulate")(commands.simulate)
    app.command("verify-history")(commands.verify_history)


def _absent(context: typer.Context) -> None:
    with needed(f"quire {context.info_name}"):
        raise ModuleNotFoundError(name=PACKAGE)
