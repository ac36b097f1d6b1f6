"""The root of the command line: help that is whole, and one handler in which whatever a command raises ends."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sys
from collections.abc import Sequence
from typing import Any

from typer import Abort, Exit
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_click_type
from typer.models import ParameterInfo

from quire.cli.console.examples import EXAMPLES
from quire.cli.console.failures import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, report
from quire.cli.console.options import MEANT, NOT_ON_COMMAND_LINES
from quire.cli.console.process import discard_output
from quire.cli.console.words import nearest, options_behind, reader_of_numbers
from quire.core.errors import MisuseError, QuireError


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` stands among a command line's options."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


class HandledGroup(TyperGroup):
    """The root of the command line: whatever a command raises ends here."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        _complete(self, "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remember whether errors are to be JSON, and hand options that stand before the command to the command."""
        ctx.meta["quire.json"] = wants_json(args)
        return super().parse_args(ctx, args if ctx.resilient_parsing else options_behind(self, args))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,  # noqa: ARG002 -- the base class has it, and this is Linux
        **extra: Any,
    ) -> Any:
        """Run one command line; the process ends with its exit code.

        Args:
            args: the words after the program's name, by default this process's.
            prog_name: the program's name, in usages.
            complete_var: the variable by which a shell asks for completions.
            standalone_mode: False: return the exit code.
            windows_expand_args: nothing here.
            extra: settings of the root's context.
        """
        if prog_name is not None:
            extra["prog_name"] = prog_name
        if complete_var is not None:
            extra["complete_var"] = complete_var
        words = list(sys.argv[1:] if args is None else args)
        code = self._run(words, **extra)
        if not standalone_mode:
            return code
        sys.exit(code)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C is reported here, because the base class gives it no words."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            raise Exit(report(error, as_json=bool(ctx.meta.get("quire.json")))) from error

    def _run(self, words: list[str], **extra: Any) -> int:
        as_json = wants_json(words)
        MEANT.set("")
        try:
            code = super().main(words, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of our output has ended (`quire log read … | head`): not an error, and nothing more to say.
            discard_output()
            return EXIT_FAILED
        except TyperException as error:
            return _refuse(error, as_json=as_json)
        except Exit as error:
            return error.exit_code
        except Abort:
            return _stop(as_json=as_json)
        except Exception as error:  # noqa: BLE001 -- the top of the process: all is reported
            code = report(error, as_json=as_json)
            if isinstance(error, OSError):
                _give_output_up()
            elif isinstance(error, QuireError) and error.retriable and not as_json:
                _say_what_starts_it(MEANT.get())
            return code
        return code if isinstance(code, int) else 0


def _refuse(error: TyperException, *, as_json: bool) -> int:
    """The command line itself is wrong."""
    if getattr(error, "option_name", "") == "--password":
        return report(MisuseError(NOT_ON_COMMAND_LINES), as_json=as_json)
    if hasattr(error, "possibilities"):
        _suggest_option(error)
    with contextlib.suppress(OSError):
        if as_json:
            facts = {"code": "usage", "message": error.format_message(), "retriable": False, "ids": {}}
            sys.stderr.write(json.dumps({"error": facts}) + "\n")
        else:
            error.show()  # type: ignore[attr-defined]
        sys.stderr.flush()
    return EXIT_USAGE


def _say_what_starts_it(uri: str) -> None:
    """A cluster of `quire up` that has ended is started again by the same command, which the errors of clients do not know."""
    from quire.cli.console.output import say
    from quire.cli.local.first_steps import starting_again

    if command := starting_again(uri):
        say(f"No bookie of this cluster is running: `{command}` starts them.")


def _suggest_option(error: Any) -> None:
    """An option that the command does not have: name the one that is nearly the same, if there is one."""
    known = [option for param in error.ctx.command.params for option in param.opts if option.startswith("--")]
    near = nearest(error.option_name, known)
    error.possibilities = None
    error.message = f"There is no option {error.option_name}" + (f": use {near}." if near else ".")


def _stop(*, as_json: bool) -> int:
    """Ctrl-C, or the end of the input, where a question was asked."""
    cause = sys.exc_info()[1]
    if cause is not None and isinstance(cause.__context__, EOFError):
        text = "The question was not answered: nothing was done. Give --yes where there is no terminal."
        return report(MisuseError(text), as_json=as_json)
    report(KeyboardInterrupt(), as_json=as_json)
    return EXIT_INTERRUPTED


def _give_output_up() -> None:
    """If stdout takes nothing more, the interpreter must not try again when it ends."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        discard_output()


def _complete(group: Any, path: str) -> None:
    """Give every command below a group its whole summary in lists, its examples below its help, and its numbers."""
    for param in group.params:
        _read_numbers(param)
    for name, command in group.commands.items():
        words = f"{path} {name}".strip()
        summary = inspect.cleandoc(command.help or "").split("\n\n")[0]
        command.short_help = command.short_help or " ".join(summary.split())
        if lines := EXAMPLES.get(words):
            # The mark keeps the lines as they are.
            command.epilog = "\n\n".join(
                [
                    *filter(None, [command.epilog]),
                    "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines),
                ]
            )
        if hasattr(command, "commands"):
            _complete(command, words)
        else:
            for param in command.params:
                _read_numbers(param)


def _read_numbers(param: Any) -> None:
    """Let an option or argument that is a number be written as Quire prints it."""
    shown = param.type.name  # "int", "int range", "float", ...: the help shows it
    number = {"int": int, "float": float}.get(shown.partition(" ")[0])
    if number is not None:
        # Of the library's own reading only the bounds are kept.
        read = reader_of_numbers(number, getattr(param.type, "min", None), getattr(param.type, "max", None))
        read.__name__ = shown
        param.type = get_click_type(annotation=number, parameter_info=ParameterInfo(parser=read))
