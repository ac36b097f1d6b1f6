"""How large a world is explored, and its budget: how often which fault may come. A world's name shows all of it.

Source: BookKeeper protocol, "Ledgers": E >= Qw >= Qa.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Configuration:
    """One world of one ledger.

    Attributes:
        bookies: how many there are; those beyond `ensemble` are spares.
        ensemble: E, like `write_quorum` Qw and `ack_quorum` Qa.
        entries: how many appends the writer's caller makes, each a run of `run` entries.
        in_flight: how many of them may be unconfirmed at a time.
        recoverers: clients that recover the ledger, each at any time.
        reruns: how often a recoverer whose run did not end in a close begins again, all together.
        window: entries that one round of recovery reads asks for.
        timeouts: requests that time out while they, or their responses, are still on their way.
        crashes: bookies that stop and start again with what their disk holds.
        breaks: connections that break: what is under way may still arrive, after what is sent later.
        lost_swaps: compare-and-swaps whose response never reaches the client.
        damages: entries that a bookie can no longer read.
        deletions: whether the ledger's owner may delete it.
        losses: bookies that go for ever, with what they hold.
        journal: without it a crash loses everything, and the bookie starts knowing only that it lost something.
        closes: whether the writer's caller may close.
        explicit_lac: whether the writer tells bookies a LAC that no later add carries.
        absent: whether a spare may stay unfound, so that a slot becomes absent.
        drops: whether what was not delivered when a writer gives a bookie up was not sent either.
        readers: clients that read while the writer writes: the newest LAC, then every entry up to it, again and again.
        run: entries of one append.
        away: slots of the ensemble whose bookies are away when the ledger is created; they may be found back.
        min_present: how many bookies must be there then; 0: Qa.
        named: without a journal, what is lost names its ledger, as a torn group does.
        clears: how often a client fills a bookie that is in limbo, and ends its limbo.
        slow_disks: whether each sync is a step of its own, though no crash can come between.
        repairers: clients that repair the ledger whenever something is to be repaired, or may come to be.
        closed: whether it begins closed, in each way in which every entry is on Qa bookies of its write set.
        changed: whether it begins with entry 0 in a decided fragment, and another ensemble from entry 1 on.
        gone: whether the bookie that such a change left is lost for ever.
        returns: bookies that are lost and come back with what they held.
        collects: whether each bookie drops the copies that the record does not give it.
        accepts_loss: whether the repairer accepts the loss of what only lost bookies have.
        waits: whether a writer that cannot reach its ack quorum waits for bookies; it may end at any time.
        guarantee: whether the ledger guarantees its write quorum.
        transit_damages: adds that arrive damaged: the bookie refuses them, and they are sent once more.
    """

    bookies: int = 2
    ensemble: int = 2
    write_quorum: int = 2
    ack_quorum: int = 2
    entries: int = 1
    in_flight: int = 2
    recoverers: int = 1
    reruns: int = 0
    window: int = 1
    timeouts: int = 0
    crashes: int = 0
    breaks: int = 0
    lost_swaps: int = 0
    damages: int = 0
    deletions: int = 0
    journal: bool = True
    closes: bool = False
    explicit_lac: bool = False
    absent: bool = False
    drops: bool = False
    readers: int = 0
    run: int = 1
    away: int = 0
    min_present: int = 0
    named: bool = False
    clears: int = 0
    waits: bool = False
    slow_disks: bool = False
    losses: int = 0
    repairers: int = 0
    closed: bool = False
    changed: bool = False
    gone: bool = False
    guarantee: bool = False
    transit_damages: int = 0
    returns: int = 0
    collects: bool = False
    accepts_loss: bool = False

    @property
    def name(self) -> str:
        """The configuration on one line: the size, then each budget that is not the usual one."""
        size = (
            f"{self.bookies} bookies {self.ensemble}/{self.write_quorum}/{self.ack_quorum} N={self.entries}"
        )
        return size + budgets_text(self, "bookies", "ensemble", "write_quorum", "ack_quorum", "entries")

    @property
    def entries_written(self) -> int:
        """How many entries there can be."""
        return self.entries * self.run

    @property
    def is_faultless(self) -> bool:
        """Whether nothing can go wrong in it."""
        faults = (self.timeouts, self.crashes, self.breaks, self.lost_swaps, self.damages, self.deletions)
        return not any((*faults, self.losses, self.transit_damages))


def budgets_text(configuration: Any, *said: str) -> str:
    """Each budget that is not the usual one, and that is not said already, in the order of the fields."""
    return "".join(
        f" {field.name.replace('_', ' ')}={_plain(getattr(configuration, field.name))}"
        for field in fields(configuration)
        if field.name not in said and getattr(configuration, field.name) != field.default
    )


def _plain(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
