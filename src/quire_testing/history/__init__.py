"""Histories: recording the requests and responses of clients, and judging them."""

from quire_testing.history.events import Event, MalformedHistoryError, entry_hash, entry_hashes
from quire_testing.history.judge import Judge, judge
from quire_testing.history.reading import HistoryFile, merged
from quire_testing.history.recorder import History, Operation
from quire_testing.history.verdict import INVARIANTS, HistoryViolation, Verdict

__all__ = [
    "INVARIANTS",
    "Event",
    "History",
    "HistoryFile",
    "HistoryViolation",
    "Judge",
    "MalformedHistoryError",
    "Operation",
    "Verdict",
    "entry_hash",
    "entry_hashes",
    "judge",
    "merged",
]
