"""Which classes and rules a world is made of. The default is what ships; a mutant replaces one part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import ClassVar

from quire.core.bookie.garbage import CollectorMachine
from quire.core.bookie.ledger import BookieLedgerMachine
from quire.core.bookie.rules import BookieRules
from quire.core.ledger.bundle_acks import BundleAcks
from quire.core.ledger.writer import WriterMachine
from quire.core.log.machine import LogMachine
from quire.core.log.rules import LogRules
from quire.core.log.trimming import TrimMachine
from quire.core.recovery.machine import RecoveryMachine
from quire.core.recovery.rules import RecoveryRules
from quire.core.recovery.take_over import TakeOverMachine
from quire.core.repair.rereplication import RepairMachine
from quire.core.repair.rules import RepairRules
from quire_testing.explorer.patches import Patch, applied


class Rules(RecoveryRules, BookieRules, RepairRules, LogRules):
    """Every rule of `core`: a world runs machines of all its packages."""


RULES = Rules()


@dataclass(frozen=True, slots=True)
class Switches:
    """What runs.

    Attributes:
        faults: the fields that are faults of the world, here of its metadata store.
        rules: the rules of every machine.
        writer, recovery, take_over, repair, log, trim, collector, bookie, bundle: the machines; of a bookie, that of one
            ledger; of a bundle, its acknowledgements.
        patches: other source for functions that ship, while this is `applied`.
        blind_closes: the store takes a writer's close whatever the version (the compare-and-swap is left out).
        blind_lists: the store takes a log's list whatever the version: "open" when opening, "roll" when rolling,
            "trim" when truncating.
        returning_truncates: where terms only fence, the bookie of an absent slot that returns is sent a truncation of the
            fragment, as if it joined.
        bundles: what those do that carry bundles: a bookie "judged when collected" or "answers early"; a client "overtakes" (a
            run leaves before an open bundle with an earlier one of its ledger).
    """

    faults: ClassVar[frozenset[str]] = frozenset(
        {"blind_closes", "blind_lists", "returning_truncates", "bundles"}
    )
    rules: Rules = RULES
    writer: type[WriterMachine] = WriterMachine
    recovery: type[RecoveryMachine] = RecoveryMachine
    take_over: type[TakeOverMachine] = TakeOverMachine
    repair: type[RepairMachine] = RepairMachine
    log: type[LogMachine] = LogMachine
    trim: type[TrimMachine] = TrimMachine
    collector: type[CollectorMachine] = CollectorMachine
    bookie: type[BookieLedgerMachine] = BookieLedgerMachine
    bundle: type[BundleAcks] = BundleAcks
    patches: tuple[Patch, ...] = ()
    blind_closes: bool = False
    blind_lists: str = ""
    returning_truncates: bool = False
    bundles: str = ""

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Whatever runs within this has the patches."""
        with applied(self.patches):
            yield

    def targets(self) -> dict[str, str]:
        """What differs from what ships, each with the machine, rule set or class that it is of, or "fault of the world"."""
        found = {
            f"rules.{name}": f"{room.__module__}.{room.__qualname__}"
            for name, room in RULES.rooms().items()
            if getattr(self.rules, name) is not getattr(RULES, name)
        }
        for patch in self.patches:
            place = f"{patch.function.__module__}.{patch.function.__qualname__}"
            found[place] = (
                place.rpartition(".")[0] if place.startswith("quire.core.") else "fault of the world"
            )
        for field in fields(self):
            value, shipped = getattr(self, field.name), getattr(SHIPPED, field.name)
            if field.name in {"rules", "patches"} or value == shipped:
                continue
            found[field.name] = (
                "fault of the world"
                if field.name in self.faults
                else f"{shipped.__module__}.{shipped.__qualname__}"
            )
            assert field.name in self.faults or value.__bases__ == (shipped,)
        return found


SHIPPED = Switches()
