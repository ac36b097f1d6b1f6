"""Electors whose answers a test says."""

from __future__ import annotations

from quire.log.electing import Candidacy
from quire.metadata.store import StoreBusyError


class Answering:
    """Names whoever asks ("me"), nobody, or another; fails with "silence".

    Attributes:
        asked: how often it was asked who should lead.
        campaigns: how often a candidate waited to lead.
        resigned: whether its candidate has given up its place.
    """

    def __init__(self, says: str) -> None:
        self.says = says
        self.asked = 0
        self.campaigns = 0
        self.resigned = False

    def candidacy(self, log_id: bytes, candidate: str) -> Candidacy:
        assert len(log_id) == 16
        self._candidate = candidate
        return self

    async def campaign(self) -> None:
        self.campaigns += 1

    async def leader(self) -> str | None:
        self.asked += 1
        if self.says == "silence":
            msg = "the elector is away"
            raise StoreBusyError(msg)
        return {"me": self._candidate, "nobody": None}.get(self.says, self.says)

    async def resign(self) -> None:
        self.resigned = True
