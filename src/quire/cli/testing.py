"""What the command line has only where the package `quire_testing` is installed, and what it says where it is not.

`quire` does not need that package; this file and `quire bench --history` are the only places that look for it.

Source: `docs/decisions/033-one-room-for-testing.md`.
"""

from __future__ import annotations

from typing import Final

import typer

from quire.core.errors import MisuseError
from quire.distribution import TESTING, testing_module

ABSENT: Final = {
    "check": f"Explore the shipped state machines in a small world (in the package {TESTING}).",
    "simulate": f"Run the real programs in a simulated world (in the package {TESTING}).",
    "verify-history": f"Judge recorded histories (in the package {TESTING}).",
}
"""The commands of that package, and their help where it is not installed."""


def add_commands(app: typer.Typer) -> None:
    """Add `check`, `simulate` and `verify-history`; where their package is absent, commands that say what to install.

    Args:
        app: the root of the command line.
    """
    try:
        commands = testing_module("commands", "quire check")
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
    testing_module("commands", f"quire {context.info_name}")
