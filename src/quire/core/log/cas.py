"""The one compare-and-swap that every change of a log is: read, change, write, and what a lost response means.

    IDLE -> READING -> IDLE -> WRITING -> IDLE
               ^                  |
               +------------------+   conflict, or unknown

A conflict may be this client's own success, so after it, and after a lost response, the head is read again before
anything is decided. The machine that owns this step judges then whether its change is in. Opening, rolling, closing,
truncating and committing have one each; `metadata/retries.py` drives it.

Source: BookKeeper ledgers to logs, "Opening a log"; docs/decisions/017-leader-epoch.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from quire.core.state_table import StateTable

T = TypeVar("T")
V = TypeVar("V")


class CasStep(Enum):
    """Where a compare-and-swap is."""

    IDLE = "idle"
    READING = "reading"
    WRITING = "writing"


CAS: Final = StateTable(
    CasStep,
    {
        "read": "idle writing > reading",
        "found": "reading > idle",
        "learned": "idle > idle",
        "write": "idle > writing",
        "written": "writing > idle",
    },
)
"""Its own inputs: what the machine asks for, and the responses. `read` follows a conflict."""


@dataclass(slots=True)
class HeadCas(Generic[T, V]):
    """What is read and written by compare-and-swap, one request at a time.

    Attributes:
        version: the version of `value`.
        value: the newest that was read or written.
        wanted: what the compare-and-swap in flight is to write; one that was lost may still take effect later.
    """

    version: V
    value: T | None = None
    wanted: T | None = None
    step: CasStep = CasStep.IDLE

    def awaits(self, name: str) -> bool:
        """Whether a response is one to the open request."""
        return self.step in CAS.rows[name]

    def read(self) -> None:
        """It is read for the first time; or anew after a conflict, or without a response."""
        self._take("read")

    def found(self, value: T, version: V) -> None:
        """This is what the store has."""
        self._take("found")
        self.value, self.version = value, version

    def learned(self, value: T, version: V) -> None:
        """This is what the store has, though nothing was asked."""
        self._take("learned")
        self.value, self.version = value, version

    def write(self, wanted: T) -> None:
        """It is replaced at the version that is known."""
        self._take("write")
        self.wanted = wanted

    def written(self, version: V) -> None:
        """The compare-and-swap is done."""
        self._take("written")
        self.value, self.version = self.wanted, version

    def _take(self, name: str) -> None:
        assert CAS.acts[name][self.step]
        (self.step,) = CAS.rows[name][self.step]
