"""The mutants of the log: one fix of opening or rolling taken out of each.

Source: docs/counterexamples.md, "All of them"; docs/decisions/016-open-items-are-recovered.md;
docs/decisions/020-next-ledger-waits.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from quire.core.log.machine import LogMachine
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.mutant import Mutant, with_rules
from quire_testing.explorer.patches import Patch
from quire_testing.explorer.switches import SHIPPED
from quire_testing.explorer.unfixed import DeletesFirst

TWO = LogConfiguration()

LOG_MUTANTS: Final[tuple[Mutant[LogConfiguration], ...]] = (
    with_rules(
        "X19",
        "an opener fences the last ledger only",
        TWO,
        "L6",
        ledgers_to_fence=lambda ledger_ids, open_ids: list(ledger_ids[-1:]),
    ),
    with_rules(
        "X20-fence",
        "an opener fences nothing",
        TWO,
        "L3",
        ledgers_to_fence=lambda ledger_ids, open_ids: [],
    ),
    Mutant(
        "X20-cas",
        "an opener writes the list without a compare-and-swap",
        replace(SHIPPED, blind_lists="open"),
        TWO,
        "L3",
    ),
    with_rules(
        "X21",
        "a leader serves before its list is written",
        LogConfiguration(handles=1),
        "L1",
        Patch(
            LogMachine._created_in_opening,
            "self._write_opening()",
            "self._serve(item, None); self._write_opening()",
        ),
    ),
    Mutant(
        "X22",
        "a roll writes the list without a compare-and-swap",
        replace(SHIPPED, blind_lists="roll"),
        TWO,
        "L3",
    ),
    with_rules(
        "X34",
        "a second roll before the previous ledger is closed",
        LogConfiguration(handles=2, ledgers=4, writes=2),
        "L6",
        may_roll=lambda open_items: True,
    ),
    with_rules(
        "log-fences-last-two",
        "an opener fences the last two items only, and a sink has put ledgers behind",
        LogConfiguration(handles=2, ledgers=4, writes=0, adopts=2),
        "L3",
        ledgers_to_fence=lambda ledger_ids, open_ids: list(ledger_ids[-2:]),
    ),
    Mutant(
        "log-deletes-first",
        "a truncation deletes ledgers before the list without them is written",
        replace(SHIPPED, trim=DeletesFirst),
        LogConfiguration(handles=1, ledgers=2, writes=1, trims=1),
        "L1",
    ),
    Mutant(
        "log-blind-truncation",
        "a truncation writes the list without a compare-and-swap",
        replace(SHIPPED, blind_lists="trim"),
        LogConfiguration(handles=1, ledgers=3, writes=1, trims=1),
        "L4",
    ),
    with_rules(
        "log-sends-early",
        "the next ledger gets entries before the former's last is confirmed",
        TWO,
        "L7",
        Patch(
            LogMachine._listed,
            "self.out.append(self._drains())",
            "former = self._drains(); self._switch(self.new, None); self.out.append(former)",
        ),
        Patch(LogMachine._drained, "self._switch(", "self.current == former and self._switch("),
    ),
)
