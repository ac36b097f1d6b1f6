"""What every error becomes: a sentence or a JSON object, and an exit code.

Servers use it too, so it must not import the command-line library.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | refused or failed: the response is no, a read failed, this machine or a peer failed, or the output cannot be written |
| 2 | usage: the command line itself is wrong; nothing was sent |
| 3 | outcome unknown: it may or may not have happened; read after a recovery to find out |
| 4 | a bookie: another process has its identity; do not start it again by itself |
| 5 | a look at a cluster, or a repair: done, and something needs attention; `up`: a bookie had not started |
| 130 | ended by Ctrl-C or SIGTERM; `up` and `bookie` stop cleanly then, with 0 |

Source: `docs/command-line.md`, "Exit codes".
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import sys
import traceback
from collections.abc import Collection
from typing import Final, TextIO

from quire.cli.console.wording import for_command_line
from quire.core.errors import (
    IdentityReplacedError,
    MisuseError,
    NotEnoughBookiesError,
    OutcomeUnknownError,
    PastEndError,
    QuireError,
    RefusedError,
)

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNKNOWN: Final = 3
EXIT_REPLACED: Final = 4
EXIT_ATTENTION: Final = 5
EXIT_INTERRUPTED: Final = 130


def code_of_copies(*, complete: bool, losses: bool = False) -> int:
    """The exit code of a look at copies: 0 where every one was looked at and is there.

    Args:
        complete: whether it is so; `losses`: entries are lost, or copies differ.
    """
    return EXIT_FAILED if losses else 0 if complete else EXIT_ATTENTION


def worst(codes: Collection[int]) -> int:
    """The exit code of several: lost entries come first, then what is missing or was not looked at."""
    return EXIT_FAILED if EXIT_FAILED in codes else max(codes, default=0)


class PortInUseError(RefusedError):
    """Another program listens on the port that a server is configured for."""

    code = "port_in_use"


class BookieStartError(RefusedError):
    """A bookie process ended, or said nothing, before it was ready."""

    code = "bookie_start"


class VerificationError(RefusedError):
    """What was read back is not what was written; the first difference is named."""

    code = "verification_failed"


def exit_code(error: BaseException) -> int:
    """The exit code a command ends with because of `error`."""
    match error:
        case KeyboardInterrupt() | asyncio.CancelledError():
            return EXIT_INTERRUPTED
        case OutcomeUnknownError():
            return EXIT_UNKNOWN
        case PastEndError():
            return EXIT_FAILED  # what there is to read is no fault of the command line
        case MisuseError():
            return EXIT_USAGE
        case IdentityReplacedError():
            return EXIT_REPLACED
    return EXIT_FAILED


def describe(error: BaseException) -> dict[str, object]:
    """What programs get to know of an error: `code`, `message`, `retriable`, `ids`."""
    match error:
        case QuireError():
            code, retriable, ids = error.code, error.retriable, error.ids
            message = for_command_line(error.message, ids)
        case KeyboardInterrupt() | asyncio.CancelledError():
            code, message, retriable, ids = "interrupted", "Interrupted.", True, {}
        case OSError():
            name = errno.errorcode.get(error.errno or 0, "")
            code, message, retriable, ids = "os", sentence_of(error), False, {"errno": name}
        case _:
            code, message, retriable, ids = "internal", f"{type(error).__name__}: {error}", False, {}
    return {
        "code": code,
        "message": message,
        "retriable": retriable,
        "ids": {key: plain(value) for key, value in ids.items()},
    }


def sentence_of(error: OSError) -> str:
    """An operating system's error as a sentence that names the file."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}."


def plain(value: object) -> object:
    """`value` as something JSON can hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(item) for item in value]
    return str(value)


_HINTS: Final = {
    "no_such_log": " (`quire log list` lists the logs)",
    "no_such_ledger": " (`quire ledger list` lists the ledgers)",
    "no_such_stream": " (`quire stream create NAME` creates a stream, `quire stream list` lists the streams)",
    "recovery_inconclusive": " (`quire cluster bookies` lists the bookies)",
}
"""What to type next, after the sentence that also serves callers in Python."""


def _hint(error: BaseException) -> str:
    """What stands behind an error's sentence."""
    if not isinstance(error, QuireError):
        return ""
    if isinstance(error, NotEnoughBookiesError):
        # Bookies must be started first: trying again alone helps nothing.
        log = error.ids.get("log")
        alter = "" if log is None else f"`quire log alter {log}` changes what the log asks for, "
        return f" ({alter}`quire cluster bookies` lists the bookies)"
    return _HINTS.get(error.code, "") + (" (trying again may help)" if error.retriable else "")


def report(error: BaseException, *, as_json: bool, stream: TextIO | None = None) -> int:
    """Report `error` to the user, in one sentence or one JSON object.

    Args:
        error: what ended the command.
        as_json: a JSON object instead of a sentence.
        stream: where the object goes, by default stderr; a server's parent reads its stdout.

    Returns:
        The exit code.
    """
    # Where even stderr takes nothing, the exit code is all that is left to say.
    with contextlib.suppress(OSError, ValueError):
        _say(error, as_json=as_json, stream=stream or sys.stderr)
    return exit_code(error)


def _say(error: BaseException, *, as_json: bool, stream: TextIO) -> None:
    facts = describe(error)
    if as_json:
        stream.write(json.dumps({"error": facts}) + "\n")
        stream.flush()
    elif facts["code"] != "internal":
        red, end = (
            ("\x1b[31m", "\x1b[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
        )
        sys.stderr.write(f"{red}{facts['message']}{_hint(error)}{end}\n")
        sys.stderr.flush()
    if facts["code"] == "internal":
        # Not a known error: a report of it needs the whole trace.
        traceback.print_exception(error)
