"""The rules of marks, each taken out of the programs once, for the mix `marks`.

They are rules of programs, not of machines: what is stored in one transaction, who vouches for a fragment, what is read again.
That a mark which says the same gets a new version is shown by dialogues (`tests/unit/autorecovery`): runs did not find it.

Source: docs/decisions/050-who-decides-marks.md; docs/counterexamples.md, "All of them".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from quire.client.recovering.recovery import RecoveryPerformer
from quire.client.repairing.inspection import look_at
from quire.client.writing.writer import WriterEffects
from quire.metadata.records import RecordStore
from quire_testing.explorer.patches import Patch
from quire_testing.explorer.switches import RULES
from quire_testing.sim.programs import SHIPPED, Parts

MARK_MUTANTS: Final[dict[str, Parts]] = {
    "mark-apart": replace(
        SHIPPED,
        patches=(
            Patch(
                RecordStore._replace,
                "return (await self._store.multi([Put(key, value, version), *noted, *marked]))[0]",
                "at = (await self._store.multi([Put(key, value, version), *noted]))[0]; "
                "(await self._store.multi(marked) if marked else None); return at",
            ),
        ),
    ),
    "recovery-vouches": replace(
        SHIPPED,
        patches=(Patch(RecoveryPerformer._write_metadata, "vouched=begins", "vouched=True"),),  # noqa: SLF001
    ),
    "change-vouches": replace(
        SHIPPED,
        patches=(
            Patch(
                WriterEffects._cas,  # noqa: SLF001
                "knows = knows and not self.holes and not self.outgoing.is_unacknowledged",
                "pass",
            ),
        ),
    ),
    "take-over-vouches": replace(
        SHIPPED,
        patches=(Patch(WriterEffects._cas, "knows = before.first_entry >= self._first", "knows = True"),),  # noqa: SLF001
    ),
    "undecided-mark-ends": replace(SHIPPED, rules=RULES.but(mark_may_end=lambda *_: True)),
    "read-once": replace(
        SHIPPED,
        patches=(
            Patch(
                look_at,
                "now, notes_now, version_now = await records.read_with_notes(ledger_id)",
                "now, notes_now, version_now = record, notes, version",
            ),
        ),
    ),
}
"""By name: the mark is written after the record; a recovery, a change, a take-over vouches for what it does not know; a mark of
an undecided fragment ends; the record is not read again after the lists."""
