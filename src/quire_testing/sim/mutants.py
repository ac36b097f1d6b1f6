"""The same programs with one fix taken out, to see that the simulator would notice.

The table of fixes is the explorer's (`quire_testing/explorer/mutants.py`); here it is said how each gets into whole programs:
rules by construction, patches while a run lasts, clients' machines by `Machines`, the store's compare-and-swap by a store that does not compare.

Source: docs/counterexamples.md, "All of them"; docs/simulation.md, "Does it notice?".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from quire.client.machines import Machines
from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.machine import RecoveryMachine
from quire.core.recovery.take_over import TakeOverMachine
from quire.metadata.keys import LEDGERS
from quire.metadata.memory import MemorySpace
from quire.metadata.store import Op, Put
from quire.wire import ledger_metadata
from quire_testing.explorer.mutants import OF_MACHINES
from quire_testing.sim.mark_mutants import MARK_MUTANTS
from quire_testing.sim.programs import SHIPPED, Parts
from quire_testing.sim.store import blind_put

WANTED: Final = (
    "D1", "D2", "D3", "D4", "D5", "D7", "D8", *(f"X{number}" for number in range(1, 18)),
)  # fmt: skip
"""What the simulator has to find 80 % of: D are defects that releases or specifications had, X single rules taken out."""

NEEDS_NO_JOURNAL: Final = frozenset({"D3", "D4", "D5"})
"""Bookies without a journal, which do not exist: what these take out is in no program that could be simulated."""


def parts_of(mutant: str) -> Parts:
    """What programs are made of without one fix; the shipped ones for no name.

    Raises:
        MisuseError: there is no such mutant, or it is in no program.
    """
    if not mutant:
        return SHIPPED
    if mutant in MARK_MUTANTS:
        return MARK_MUTANTS[mutant]
    known = OF_MACHINES.get(mutant)
    if known is None or mutant in NEEDS_NO_JOURNAL:
        msg = f"there is no mutant {mutant!r} of whole programs; there are {', '.join([*simulated(), *MARK_MUTANTS])}"
        raise MisuseError(msg)
    rules = known.switches.rules
    writer: type[WriterMachine] = known.switches.writer
    machines = Machines(
        lambda record, version, limits, last=NO_ENTRY, length=0: writer(
            record, version, rules=rules, limits=limits, last=last, length=length
        ),
        lambda record, version: RecoveryMachine(record, version, rules),
        partial(known.switches.repair, rules=rules),
        partial(TakeOverMachine, rules=rules),
    )
    blind = _blind_closes if known.switches.blind_closes else None
    return replace(SHIPPED, rules=rules, machines=machines, patches=known.switches.patches, blind=blind)


def simulated() -> list[str]:
    """The wanted mutants that are in the programs."""
    return [name for name in WANTED if name not in NEEDS_NO_JOURNAL]


def _blind_closes(space: MemorySpace, ops: Sequence[Op]) -> Sequence[Op]:
    """X16: a change that closes a ledger happens whatever the version."""
    return [blind_put(space, op) if isinstance(op, Put) and _closes(op) else op for op in ops]


def _closes(op: Put) -> bool:
    if not op.key.startswith(LEDGERS):
        return False
    try:
        record = ledger_metadata.parse(op.value, int(op.key.removeprefix(LEDGERS)))
    except CorruptMetadataError:
        return False
    return record.state is LedgerState.CLOSED
