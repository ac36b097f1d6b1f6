"""Performs one take-over of a stream: a recovery's driver with a `TakeOverMachine`.

Source: docs/protocol/streams.md, "Take-over".
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from quire.client.access import LedgerAccess
from quire.client.context import ClientContext
from quire.client.recovery import RecoveryPerformer, TakeOverResult
from quire.core.errors import MisuseError
from quire.core.ids import BookieId
from quire.core.ledger_metadata import LedgerMetadata
from quire.core.recovery import RecoveryMachine
from quire.core.take_over import TakeOverMachine


class StreamTakeOver(RecoveryPerformer[TakeOverMachine, TakeOverResult]):
    """One take-over, from the record as it was read to a result.

    Args:
        record: the stream's record; the password was compared before.
        version: its version in the store.
        context: what it shares with the client's other handles of streams.
        ignored_lacs: bookies whose LAC is ignored.

    Raises:
        MisuseError: its terms only fence, for which a recovery's driver is not enough.
    """

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        context: ClientContext,
        ignored_lacs: Collection[BookieId] = (),
    ) -> None:
        if record.only_fences:
            msg = f"stream {record.ledger_id} has mode FENCING, which this program does not write: use a newer Quire"
            raise MisuseError(msg, ledger_id=record.ledger_id)
        machine = context.machines.take_over(record, version, context.chance.getrandbits(64))
        access = LedgerAccess.of(record, machine.term)
        super().__init__(machine, partial(machine.take_over, ignored_lacs), record, access, context)

    @property
    def term(self) -> int:
        """The term in which this client writes if it takes the stream over."""
        return self._machine.term

    @property
    def _recovery(self) -> RecoveryMachine:
        recovery = self._machine.recovery
        assert recovery is not None, "bookies are asked once the take-over is announced"
        return recovery
