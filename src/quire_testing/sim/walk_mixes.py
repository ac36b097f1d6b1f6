"""The mixes of the walks: which world, which budgets of faults, and what is drawn for one walk of it.

Source: docs/simulation.md, "Walks of the machines".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.stream_parts import StreamConfiguration


@dataclass(frozen=True, slots=True)
class WalkMix:
    """One kind of walk.

    Attributes:
        name: what it is called.
        what: one sentence.
        world: its size and its budgets of faults.
        hunts: whether mutants are hunted in it.
        aims: (kind of fault, kind of request): most of the walks keep such faults for that request of a recoverer.
    """

    name: str
    what: str
    world: Configuration | LogConfiguration | StreamConfiguration
    hunts: bool = True
    aims: tuple[tuple[str, str], ...] = ()


def _large(**budgets: int | bool) -> Configuration:
    """Five bookies, E=4, Qw=3, Qa=2, 20 entries, two recoverers; the budgets are the mix's own."""
    values = {"entries": 20, "in_flight": 4, "recoverers": 2, "window": 2, **budgets}
    return Configuration(5, 4, 3, 2, **values)  # type: ignore[arg-type]


_THREE_CLIENTS: Final = StreamConfiguration(
    4, 3, 3, 2, 2, clients=2, take_overs=3, timeouts=2, breaks=1, lost_swaps=1, readers=1, explicit_lac=True
)
"""Three clients that take a stream over from each other, and a spare."""
_FOUR_CLIENTS: Final = StreamConfiguration(
    5, 4, 3, 2, 3, clients=3, take_overs=4, window=2, timeouts=1, breaks=2
)
"""Four clients, entries that are striped, two at a time recovered."""

WALK_MIXES: Final = {
    mix.name: mix
    for mix in (
        WalkMix("takeover", "a recovery begins at a random add; a client is impatient", _large(timeouts=2)),
        WalkMix(
            "duel",
            "two recoverers, each begins again when it fails; time-outs, one entry at a time",
            _large(window=1, timeouts=2, reruns=2),
        ),
        WalkMix("crashes", "bookies lose what was not synced; time-outs", _large(crashes=2, timeouts=2)),
        WalkMix(
            "network",
            "connections break and what was under way arrives late; compare-and-swaps of unknown outcome",
            _large(breaks=2, timeouts=2, lost_swaps=1, absent=True),
        ),
        WalkMix(
            "closing",
            "the writer closes while others recover; answers of the store are lost",
            _large(closes=True, timeouts=1, lost_swaps=2, reruns=1),
        ),
        WalkMix(
            "no-journal",
            "a bookie without a journal comes back empty",
            _large(journal=False, crashes=1, timeouts=1, reruns=1),
        ),
        WalkMix(
            "overtaken",
            "a recoverer's connection breaks under its fence: its reads arrive before it",
            _large(breaks=1, timeouts=1),
            aims=(("breaks", "fence"),),
        ),
        WalkMix(
            "replaced",
            "a recoverer gives up a bookie that it writes back to, and goes on reading",
            _large(window=1, timeouts=2),
            aims=(("timeouts", "put"),),
        ),
        WalkMix(
            "readers",
            "two readers next to the writer, explicit LACs, runs of two entries",
            Configuration(
                5, 4, 3, 2, 10, run=2, recoverers=1, readers=2, window=4, timeouts=2, explicit_lac=True
            ),
            hunts=False,
        ),
        WalkMix(
            "rot",
            "an entry rots, a bookie crashes, the ledger may be deleted",
            _large(damages=1, crashes=1, timeouts=1, deletions=1),
            hunts=False,
        ),
        WalkMix(
            "repair",
            "two repairers next to a writer that closes and a recoverer; a bookie is lost for ever, or crashes",
            _large(
                entries=10,
                recoverers=1,
                closes=True,
                timeouts=2,
                lost_swaps=1,
                crashes=1,
                losses=1,
                repairers=2,
            ),
            hunts=False,
        ),
        WalkMix(
            "write-quorum",
            "the write quorum is guaranteed: two recoverers, time-outs, lost compare-and-swaps, an add that arrives damaged",
            _large(
                guarantee=True,
                closes=True,
                waits=True,
                timeouts=2,
                lost_swaps=1,
                reruns=1,
                transit_damages=1,
            ),
            hunts=False,
        ),
        WalkMix(
            "write-quorum-losses",
            "the same with two copies of each entry, one of which is enough, while a bookie is lost for ever",
            Configuration(
                3,
                2,
                2,
                1,
                10,
                in_flight=4,
                recoverers=2,
                waits=True,
                losses=1,
                breaks=1,
                guarantee=True,
                transit_damages=1,
            ),
            hunts=False,
        ),
        WalkMix(
            "log",
            "three leaders of one log, rolls, lost compare-and-swaps, a truncation",
            LogConfiguration(3, 6, 6, lost_swaps=1, trims=1),
            hunts=False,
        ),
        WalkMix(
            "stream",
            "three clients take a stream over from each other; time-outs, a break, a lost compare-and-swap, a reader with an old record",
            _THREE_CLIENTS,
            hunts=False,
        ),
        WalkMix(
            "stream-losses",
            "the same while a bookie loses its disk, without a spare",
            StreamConfiguration(
                3, 3, 3, 2, 2, clients=2, take_overs=3, losses=1, breaks=1, lost_swaps=1, readers=1
            ),
            hunts=False,
        ),
        WalkMix(
            "stream-striped",
            "four clients, five bookies, E=4, Qw=3, Qa=2, two entries at a time",
            _FOUR_CLIENTS,
            hunts=False,
        ),
        WalkMix(
            "stream-fencing",
            "as stream, where terms only fence",
            replace(_THREE_CLIENTS, fencing=True),
            hunts=False,
        ),
        WalkMix(
            "stream-fencing-two",
            "two bookies of which one is enough, three entries a client, three take-overs; terms only fence",
            StreamConfiguration(
                3, 2, 2, 1, 3, clients=2, take_overs=3, window=2, timeouts=1, breaks=1, fencing=True
            ),
            hunts=False,
        ),
        WalkMix(
            "stream-fencing-striped",
            "as stream-striped, where terms only fence",
            replace(_FOUR_CLIENTS, fencing=True),
            hunts=False,
        ),
    )
}
"""By name."""

STREAM_MIXES: Final = ("stream", "stream-losses", "stream-striped")
FENCING_MIXES: Final = ("stream-fencing", "stream-fencing-two", "stream-fencing-striped")

QUORUM_MIXES: Final = ("write-quorum", "write-quorum-losses")

HUNTING: Final = tuple(mix.name for mix in WALK_MIXES.values() if mix.hunts)
