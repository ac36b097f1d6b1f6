"""What this process is to those around it: its three standard streams, and the signals that end it.

Only the entry point calls this; a program that calls the commands itself keeps its streams and signals.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    from _typeshed import ReadableBuffer


class StandardOutput(io.FileIO):
    """Standard output; an error of a write names it, so that the user knows what is full or closed."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write as `FileIO` does."""
        try:
            return super().write(data) or 0
        except OSError as error:
            error.filename = "standard output"
            raise


def prepare_streams() -> None:
    """Make the standard streams usable, whatever this process was started with.

    A stream that is closed (`>&-`) would give its number to the next file or connection that is opened. It gets a
    file on which every read or write fails. What stdout's encoding does not have is written with backslashes.
    """
    for number, mode in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # the lowest free number: this one
    sys.stdin = sys.stdin or open(0, closefd=False, encoding="utf-8")  # noqa: SIM115 -- a number has no path
    sys.stderr = sys.stderr or open(2, "w", closefd=False, encoding="utf-8")  # noqa: SIM115 -- the same
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    raw = StandardOutput(1, "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=raw.isatty()
    )
    sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def discard_output() -> None:
    """Nothing more goes to stdout: its reader has ended, or it takes nothing."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 -- lives until the process ends


def end_on_sigterm() -> None:
    """SIGTERM ends a command as Ctrl-C does: what it opened is closed, and the exit code is 130."""
    signal.signal(signal.SIGTERM, _as_ctrl_c)


def keep_exit_code() -> None:
    """The exit code is known: a signal while the interpreter takes itself down must not replace it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _as_ctrl_c(number: int, frame: FrameType | None) -> Any:
    # While a coroutine runs, Ctrl-C cancels it. A shell without job control ignores SIGINT for what it starts with `&`.
    handler = signal.getsignal(signal.SIGINT)
    return (handler if callable(handler) else signal.default_int_handler)(number, frame)
