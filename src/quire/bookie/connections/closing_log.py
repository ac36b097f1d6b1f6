"""The log's lines about connections that were refused or ended: one each, and not too many a second."""

from __future__ import annotations

import logging
from typing import Final

LINES_A_SECOND: Final = 20
"""Where more connections end than this, the log says how many they were."""


class ClosingLog:
    """Logs why connections were closed, not more than so many lines at a time.

    Args:
        log: where to.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._left = LINES_A_SECOND
        self._unsaid = 0

    def say(self, text: str, *args: object) -> None:
        """A connection was refused, or ends because of what its client did."""
        if self._left:
            self._left -= 1
            self._log.warning(text, *args)
        else:
            self._unsaid += 1

    def sweep(self) -> None:
        """A second has passed."""
        if self._unsaid:
            self._log.warning("%d more connections were refused or closed within a second", self._unsaid)
        self._left, self._unsaid = LINES_A_SECOND, 0
