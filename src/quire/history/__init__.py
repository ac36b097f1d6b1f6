"""Histories: recording what clients were told, and judging it."""

from quire.history.events import Event, MalformedHistoryError, entry_hash, entry_hashes
from quire.history.recorder import History, Operation

__all__ = ["Event", "History", "MalformedHistoryError", "Operation", "entry_hash", "entry_hashes"]
