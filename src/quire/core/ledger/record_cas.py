"""A writer's requests to the metadata store about its ledger's record: reads and compare-and-swaps, one at a time.

Source: docs/protocol/README.md, "The ledger's record".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from quire.core.ledger.effects import RereadMetadata, WriteMetadata
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.rules import LedgerRules
from quire.core.state_table import StateTable


class StoreRequest(Enum):
    """The one request to the metadata store that is outstanding."""

    NOTHING = "nothing"
    WRITE = "write"
    READ = "read"


CAS_TABLE: Final = StateTable(
    StoreRequest,
    {
        "propose": "nothing > write",
        "reread": "write > read",
        "written": "write > nothing",
        "read": "read > nothing",
        "unanswered": "write > read; read > =",
        "missing": "write read > nothing",
        "forget": "nothing write read > nothing",
    },
)
"""What may be asked and answered when. `read` answers `reread`; an unanswered request is followed by a read."""


@dataclass(slots=True, eq=False)
class RecordCas:
    """The record as it was stored last, and the question about it.

    Attributes:
        record: the newest record that is known to have been stored; `version`: its version.
        asked: the open question.
        proposed: the record that is being written.
        unsettled: the version against which a compare-and-swap of unknown outcome went out: while it stands, that one may
            still take effect.
        attempts: unanswered requests since the last answer that counts.
    """

    record: LedgerMetadata
    version: int
    asked: StoreRequest = field(default=StoreRequest.NOTHING, init=False)
    proposed: LedgerMetadata | None = field(default=None, init=False)
    unsettled: int | None = field(default=None, init=False)
    attempts: int = field(default=0, init=False)

    def propose(self, record: LedgerMetadata) -> WriteMetadata:
        """Ask to store a record in place of the newest."""
        assert CAS_TABLE.acts["propose"][self.asked]
        self.asked, self.proposed = CAS_TABLE.moved[self.asked, StoreRequest.WRITE], record
        return WriteMetadata(record, self.version)

    def reread(self) -> RereadMetadata:
        """Ask for the record: the compare-and-swap was lost."""
        assert CAS_TABLE.acts["reread"][self.asked]
        self.asked, self.proposed = CAS_TABLE.moved[self.asked, StoreRequest.READ], None
        return RereadMetadata()

    def written(self, version: int) -> None:
        """The proposed record is stored."""
        assert CAS_TABLE.acts["written"][self.asked]
        assert self.proposed is not None
        self.record, self.version = self.proposed, version
        self.forget()
        self.attempts = 0

    def read(self, record: LedgerMetadata, version: int) -> None:
        """The record as it is stored now."""
        assert CAS_TABLE.acts["read"][self.asked]
        self.record, self.version = record, version
        self.forget()

    def missing(self) -> None:
        """The record is deleted."""
        assert CAS_TABLE.acts["missing"][self.asked]
        self.forget()

    def unanswered(self) -> RereadMetadata | None:
        """A request stayed without an answer; None if it was a read: that is to be repeated later."""
        assert CAS_TABLE.acts["unanswered"][self.asked]
        self.attempts += 1
        if self.asked is StoreRequest.READ:
            return None
        self.unsettled = self.version
        return self.reread()

    def is_unsettled(self, rules: LedgerRules) -> bool:
        """Whether a compare-and-swap of unknown outcome may still take effect."""
        return self.unsettled is not None and not rules.may_go_on_after_unknown(self.unsettled, self.version)

    def settled(self) -> None:
        """What was asked for is stored, and no earlier compare-and-swap can take effect any more."""
        assert self.asked is StoreRequest.NOTHING
        self.unsettled, self.attempts = None, 0

    def be_patient(self) -> None:
        """Another purpose begins: requests that stay unanswered are counted anew."""
        self.attempts = 0

    def forget(self) -> None:
        """Nothing is asked any more."""
        self.asked, self.proposed = CAS_TABLE.moved[self.asked, StoreRequest.NOTHING], None

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        self.record.checked()
        assert (self.proposed is not None) == (self.asked is StoreRequest.WRITE), (
            "what is written was proposed"
        )
