"""Which state machines of `core` a client's writers, recoveries and repairs run: those that ship, or a check's.

A check passes machines with a rule replaced (`quire_testing/explorer/mutants.py`), or machines that record their
inputs and effects (`quire_testing/replay/recording.py`). They are made once for each ledger, so the path of an entry is
the same with and without them.

Source: docs/decisions/006-explorer.md; docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import WriterLimits
from quire.core.recovery.machine import RecoveryMachine
from quire.core.recovery.take_over import TakeOverMachine
from quire.core.repair.rereplication import RepairMachine


class MakeWriter(Protocol):
    """From a record as created, its version, and when to wait and retry; of a stream also its last entry and length."""

    def __call__(
        self,
        record: LedgerMetadata,
        version: int,
        limits: WriterLimits,
        last: int = ...,
        length: int = ...,
        /,
    ) -> WriterMachine: ...


MakeRecovery: TypeAlias = Callable[[LedgerMetadata, int], RecoveryMachine]
MakeTakeOver: TypeAlias = Callable[[LedgerMetadata, int, int], TakeOverMachine]


def _writer(
    record: LedgerMetadata, version: int, limits: WriterLimits, last: int = NO_ENTRY, length: int = 0
) -> WriterMachine:
    return WriterMachine(record, version, limits=limits, last=last, length=length)


@dataclass(frozen=True, slots=True)
class Machines:
    """Makes the machines of `core` for the client's drivers; a test passes one that records them.

    Attributes:
        writer: see `MakeWriter`.
        recovery: from a record as read, and its version.
        repair: from the lost bookies and those that may take slots; see `RepairMachine`.
        take_over: from a stream's record as read, its version, and 64 random bits of this take-over.
    """

    writer: MakeWriter = _writer
    recovery: MakeRecovery = RecoveryMachine
    repair: Callable[..., RepairMachine] = RepairMachine
    take_over: MakeTakeOver = TakeOverMachine


SHIPPED: Final = Machines()
