"""The tables of the ledger's machines and of their parts: what they name exists, and what they refuse raises."""

from __future__ import annotations

from inspect import Parameter, isfunction, signature

import pytest

from quire.core.errors import MisuseError, NotWritingError
from quire.core.ledger.closing import CLOSING_TABLE, Closing
from quire.core.ledger.ensemble_change import CHANGE_TABLE, EnsembleChange
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.record_cas import CAS_TABLE, RecordCas
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import WRITER_TABLE
from quire.core.recovery.log_end_search import END_TABLE, LogEndSearch
from quire.core.recovery.machine import RECOVERY_TABLE, RecoveryMachine
from quire.core.recovery.take_over import TAKE_OVER_TABLE, TakeOverMachine
from quire.core.repair.audit import AUDIT_TABLE, AuditMachine
from quire.core.repair.effects import REPAIR_TABLE
from quire.core.repair.rereplication import RepairMachine
from quire.core.repair.work_queue import MARK_TABLE, MarkedLedger, QueuedMark
from quire_testing.explorer.snapshot import state_of
from quire_testing.explorer.switches import RULES

RECORD = new_ledger(
    7, ("b1", "b2", "b3"), write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
)
ENSEMBLE = RECORD.last_fragment.ensemble
MADE = {
    WriterMachine: (WRITER_TABLE, "status", lambda: WriterMachine(RECORD, 0)),
    RecoveryMachine: (RECOVERY_TABLE, "status", lambda: RecoveryMachine(RECORD, 0)),
    TakeOverMachine: (TAKE_OVER_TABLE, "status", lambda: TakeOverMachine(RECORD, 0, 5)),
    LogEndSearch: (END_TABLE, "status", lambda: LogEndSearch(RECORD, ENSEMBLE, RULES, 4, ())),
    EnsembleChange: (CHANGE_TABLE, "status", lambda: EnsembleChange(7, ENSEMBLE, (0, 1, 2))),
    RecordCas: (CAS_TABLE, "asked", lambda: RecordCas(RECORD, 0)),
    AuditMachine: (AUDIT_TABLE, "status", AuditMachine),
    Closing: (CLOSING_TABLE, "status", lambda: Closing(7, RULES)),
    MarkedLedger: (MARK_TABLE, "status", lambda: MarkedLedger(QueuedMark(1, (), 2, 0))),
    RepairMachine: (REPAIR_TABLE, "status", lambda: RepairMachine([], [])),
}
REFUSED = [
    (kind, name, state)
    for kind, (table, _, _) in MADE.items()
    for name, takes in table.acts.items()
    for state in table.states
    if state not in takes
]


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_a_table_names_inputs_of_its_class_and_reaches_every_state(kind):
    table, _, _ = MADE[kind]
    assert all(isfunction(getattr(kind, name)) for name in table.rows)
    found = {next(iter(table.states))}
    while more := {new for _, old, new in table.edges() if old in found} - found:
        found |= more
    assert found == set(table.states)


@pytest.mark.parametrize(("kind", "name", "state"), REFUSED, ids=str)
def test_what_a_table_refuses_raises_and_changes_nothing(kind, name, state):
    _, field, make = MADE[kind]
    part = make()
    setattr(part, field, state)
    before, call = state_of(part), getattr(part, name)
    given = {each: () for each, how in signature(call).parameters.items() if how.default is Parameter.empty}
    with pytest.raises((MisuseError, NotWritingError)):
        call(**given)
    assert state_of(part) == before
