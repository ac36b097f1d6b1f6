"""The root of the command line: whatever a command raises ends here, in one handler."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from typer import Abort, Exit
from typer.core import TyperGroup
from typer.exceptions import TyperException

from quire.cli.failures import EXIT_FAILED, EXIT_USAGE, report
from quire.cli.options import NOT_ON_COMMAND_LINES
from quire.core.errors import MisuseError


def wants_json(arguments: list[str]) -> bool:
    """Whether `--json` stands among a command line's options."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


class HandledGroup(TyperGroup):
    """The root of the command line: whatever a command raises ends here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remember whether errors are to be JSON, before anything else can go wrong."""
        ctx.meta["quire.json"] = wants_json(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; turn what it raises into words and an exit code."""
        as_json = bool(ctx.meta.get("quire.json"))
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of our output has gone (`quire log read … | head`): not an error, and nothing more to say.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 -- lives until the process ends
            raise Exit(EXIT_FAILED) from None
        except TyperException as error:
            if getattr(error, "option_name", "") == "--password":
                raise Exit(report(MisuseError(NOT_ON_COMMAND_LINES), as_json=as_json)) from None
            if not as_json:
                raise
            facts = {"code": "usage", "message": error.format_message(), "retriable": False, "ids": {}}
            sys.stdout.write(json.dumps({"error": facts}) + "\n")
            raise Exit(EXIT_USAGE) from error
        except (Exit, Abort):
            raise
        except (Exception, KeyboardInterrupt, asyncio.CancelledError) as error:
            raise Exit(report(error, as_json=as_json)) from error
