"""Histories: recording what clients were told, and judging it."""

from quire.history.events import Event, MalformedHistoryError, entry_hash, entry_hashes
from quire.history.judge import Judge, judge
from quire.history.reading import HistoryFile, merged
from quire.history.recorder import History, Operation
from quire.history.verdict import INVARIANTS, Verdict, Violation

__all__ = [
    "INVARIANTS",
    "Event",
    "History",
    "HistoryFile",
    "Judge",
    "MalformedHistoryError",
    "Operation",
    "Verdict",
    "Violation",
    "entry_hash",
    "entry_hashes",
    "judge",
    "merged",
]
