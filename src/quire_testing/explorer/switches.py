"""Which classes and judgements a world is made of. The default is what ships; a mutant replaces one part."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.garbage import CollectorMachine
from quire.core.log import LogMachine
from quire.core.log_trimming import TrimMachine
from quire.core.recovery import RecoveryMachine
from quire.core.rules import RULES, Rules
from quire.core.writer import WriterMachine
from quire_testing.explorer.bookies import BookieDriver
from quire_testing.explorer.readers import ReaderDriver


@dataclass(frozen=True, slots=True)
class Switches:
    """What runs.

    Attributes:
        rules: the judgements of every machine.
        writer, recovery, log, trim, collector: the machines.
        bookie: how a bookie carries out requests.
        reader: how a reader reads.
        blind_closes: the store takes a writer's close whatever the version (the compare-and-swap is left out).
        blind_lists: the store takes a log's list whatever the version: "open" when opening, "roll" when rolling,
            "trim" when truncating.
        collector_sees_revisions: a collector gets the store's revision as its generation.
        collector_lsn_late: a collector takes the LSN of a pass after it wrote its counter.
    """

    rules: Rules = RULES
    writer: type[WriterMachine] = WriterMachine
    recovery: type[RecoveryMachine] = RecoveryMachine
    log: type[LogMachine] = LogMachine
    trim: type[TrimMachine] = TrimMachine
    collector: type[CollectorMachine] = CollectorMachine
    bookie: type[BookieDriver] = BookieDriver
    reader: type[ReaderDriver] = ReaderDriver
    blind_closes: bool = False
    blind_lists: str = ""
    collector_sees_revisions: bool = False
    collector_lsn_late: bool = False


SHIPPED = Switches()
