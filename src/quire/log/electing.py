"""Who should lead a log: asked before a writer that waits begins, and before a lost compare-and-swap is retried.

Advice only. That one writer at a time changes a log is the log's own work: fences, and the compare-and-swap of its
list. An elector that is wrong, slow or inconsistent costs time, never a record.

Source: BookKeeper ledgers to logs, "Opening a log"; docs/protocol/log.md.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from quire.core.errors import QuireError
from quire.metadata.election import Election
from quire.metadata.store import MetadataStore

_LOG: Final = logging.getLogger(__name__)
_RETRY_MS: Final = 1000
"""The pause before a writer tries again to stand in the election of a store that did not respond."""


def election_of(log_id: bytes) -> str:
    """The name of the election in the metadata store in which a log's writers stand."""
    return f"log-{log_id.hex()}"


class Candidacy(Protocol):
    """One writer's candidacy in an election."""

    async def campaign(self) -> None:
        """Stand, and return when this candidate should lead; may be cancelled, and called again."""

    async def leader(self) -> str | None:
        """The candidate that should lead now; None: no candidate is named, so the caller may try."""

    async def resign(self) -> None:
        """Stand no more; may be called by a candidate that never stood."""


class Elector(Protocol):
    """Says who should lead a log. The default is the election in the cluster's metadata store (`StoreElector`)."""

    def candidacy(self, log_id: bytes, candidate: str) -> Candidacy:
        """A candidate for the lead of a log.

        Args:
            log_id: the log.
            candidate: names the writer, and no other that ever was.
        """


class StoreElector:
    """The elector that ships: who registered first in the metadata store and is still there should lead.

    Args:
        store: the cluster's metadata.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def candidacy(self, log_id: bytes, candidate: str) -> Candidacy:
        """See `Elector`."""
        return Election(self._store, election_of(log_id), candidate)


class CandidateStanding:
    """A writer's place before an elector, and what it does about the responses.

    Args:
        candidacy: of this writer.
        candidate: its name.
        wait: stand behind the others until this one should lead, instead of taking the log over at once.
        shown: a candidacy in the store's election next to another elector's: sinks look there for a running leader.
    """

    def __init__(
        self, candidacy: Candidacy, candidate: str, *, wait: bool, shown: Candidacy | None = None
    ) -> None:
        self._candidacy = candidacy
        self._candidate = candidate
        self._wait = wait
        self._shown = shown
        self._campaigns: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Stand; with `wait`, until this writer should lead."""
        if self._shown is not None:
            self._campaigns.append(asyncio.ensure_future(self._stand(self._shown)))
        if self._wait:
            await self._candidacy.campaign()
        self._campaigns.append(asyncio.ensure_future(self._stand(self._candidacy, stands=self._wait)))

    async def _stand(self, candidacy: Candidacy, *, stands: bool = False) -> None:
        """Stand until the end: in the store's election also when a session of the store is over."""
        while True:
            try:
                if not stands:
                    await candidacy.campaign()
                if not isinstance(candidacy, Election) or not await candidacy.lost():
                    return
            except QuireError as error:
                if not (error.retriable and isinstance(candidacy, Election)):
                    raise
                await asyncio.sleep(_RETRY_MS / 1000)
            stands = False

    async def may_retry(self) -> bool:
        """Ask the elector again after a lost compare-and-swap: whether to retry. Who waits for the lead waits again.

        An elector that is unreachable stops no candidate, since the log's list decides.

        Raises:
            Exception: this writer waits for the lead, and the elector failed with that.
        """
        try:
            leader = await self._candidacy.leader()
        except Exception as error:
            if self._wait:
                raise
            _LOG.warning("the leader election failed, and %s goes on without it: %s", self._candidate, error)
            return True
        if self._wait and leader != self._candidate:
            await self._candidacy.campaign()
            return True
        return leader is None or leader == self._candidate

    async def end(self) -> None:
        """Give the place up."""
        for campaign in self._campaigns:
            campaign.cancel()
        for outcome in await asyncio.gather(*self._campaigns, return_exceptions=True):
            if isinstance(outcome, Exception):
                _LOG.warning("%s could not join the leader election: %s", self._candidate, outcome)
        for candidacy in (self._candidacy, self._shown):
            if candidacy is None:
                continue
            try:
                await candidacy.resign()
            except Exception as error:  # noqa: BLE001 - whatever an elector raises, its advice is not needed any more
                _LOG.warning("%s could not leave the leader election: %s", self._candidate, error)
