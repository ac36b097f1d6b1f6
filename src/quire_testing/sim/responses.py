"""What an error of a client says to the history.

Source: docs/formats/history.md.
"""

from __future__ import annotations

from quire.core.errors import MisuseError, RefusedError
from quire_testing.history import Operation


def answer(operation: Operation, error: BaseException) -> None:
    """What an error says about what was asked for."""
    if isinstance(error, MisuseError | RefusedError):
        operation.fail(error)
    else:
        operation.unknown(error)
