"""The mixes of workload and faults, and what is drawn for one run of a mix: how large, how fast, who is slow.

Each run has a character of its own: one bookie slow for the whole run, one link almost dead, one client impatient.
Uniform chance is weak; such "swarm" settings and links of unlike priority find more.

Source: docs/simulation.md, "The world".
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from quire.core.ledger.terms import StreamMode
from quire_testing.sim.faults import LINKS, Fault, FaultKind, Phase, draw_faults
from quire_testing.sim.loop import MS
from quire_testing.sim.network import NetworkSettings
from quire_testing.sim.programs import DiskSettings
from quire_testing.sim.store import StoreSettings


@dataclass(frozen=True, slots=True)
class Mix:
    """One kind of run.

    Attributes:
        name: for the command line.
        what: one sentence.
        workload: which programs run.
        shapes: (bookies, E, Qw, Qa) to choose from.
        entries: most entries of each writer.
        clients: names; what each does is the workload's. An inspector marks the copies that the bookies'
            lists lack.
        weights: of the kinds of faults.
        faults: how many, at most.
        lost: answers of the metadata store that are lost, out of 1024.
        padding: bytes that each entry has more: long entries fill segments.
        guarantee: of its ledgers.
        mode: of its streams; None: drawn.
    """

    name: str
    what: str
    workload: str
    shapes: tuple[tuple[int, int, int, int], ...]
    entries: int
    clients: tuple[str, ...]
    weights: dict[FaultKind, int]
    faults: int
    lost: int = 0
    padding: int = 0
    guarantee: str | None = None
    mode: StreamMode | None = StreamMode.IDENTIFIERS


SMALL: Final = ((3, 3, 3, 2), (4, 3, 3, 2), (3, 2, 2, 1), (3, 2, 2, 2), (4, 3, 2, 2), (4, 4, 3, 2))
LARGE: Final = ((5, 4, 3, 2),)
_NETWORK: Final = {
    FaultKind.BREAK: 4,
    FaultKind.CUT: 4,
    FaultKind.SLOW_LINK: 4,
    FaultKind.ISOLATE: 1,
    FaultKind.PAUSE: 2,
}
_CRASHES: Final = {FaultKind.KILL: 3, FaultKind.POWER: 3, FaultKind.DIES_WRITING: 2, FaultKind.KILL_CLIENT: 1}


def _streams(name: str, what: str, mode: StreamMode) -> Mix:
    """Leaders of two elections take a stream over from each other, others tail it, read parts of it, and repair it."""
    return Mix(
        name,
        what,
        "streams",
        SMALL,
        10,
        ("leader1", "leader2", "leader3", "leader4", "tail", "reader", "repairer"),
        {
            **_NETWORK,
            FaultKind.PAUSE: 5,
            FaultKind.POWER: 4,
            FaultKind.KILL: 1,
            FaultKind.KILL_CLIENT: 2,
            FaultKind.STORE_CUT: 3,
            FaultKind.SESSION_LOST: 2,
            FaultKind.CLOCK_JUMP: 3,
        },
        6,
        lost=60,
        mode=mode,
    )


MIXES: Final = {
    mix.name: mix
    for mix in (
        Mix(
            "takeover",
            "one writer, two recoverers that begin at a random add, one tail reader; links and bookies fail",
            "takeover",
            SMALL,
            16,
            ("writer", "rec1", "rec2", "reader"),
            {**_NETWORK, **_CRASHES},
            6,
        ),
        Mix(
            "large",
            "5 bookies, E=4, Qw=3, Qa=2, 20 entries, two recoverers, crashes",
            "takeover",
            LARGE,
            20,
            ("writer", "rec1", "rec2", "reader"),
            {**_NETWORK, **_CRASHES},
            8,
        ),
        Mix(
            "hunt",
            "as large, and a bookie fails while the writer is at its fastest; clients are hasty or patient",
            "takeover",
            LARGE,
            20,
            ("writer", "rec1", "rec2", "reader"),
            {
                FaultKind.KILL: 4,
                FaultKind.POWER: 4,
                FaultKind.BREAK: 3,
                FaultKind.CUT: 3,
                FaultKind.SLOW_LINK: 4,
                FaultKind.KILL_CLIENT: 2,
                FaultKind.PAUSE: 1,
            },
            8,
        ),
        Mix(
            "readers",
            "three writers of a ledger each and tail readers of all; ensembles change, ledgers are closed",
            "readers",
            SMALL,
            20,
            ("writer1", "writer2", "writer3", "reader1", "reader2"),
            {**_NETWORK, FaultKind.KILL: 2, FaultKind.SLOW_DISK: 2},
            6,
        ),
        Mix(
            "bundles",
            "one client writes four ledgers, whose runs share requests; one is recovered meanwhile, bookies fail",
            "bundles",
            ((3, 3, 3, 2), (4, 3, 3, 2), (4, 2, 2, 1), (4, 3, 3, 3)),
            16,
            ("writer", "rec1", "reader"),
            {**_NETWORK, **_CRASHES, FaultKind.SLOW_DISK: 2},
            6,
        ),
        Mix(
            "disks",
            "disks tear, rot, fail, fill up and lose what was not synced, during adds, recoveries and starts",
            "takeover",
            ((3, 3, 3, 2), (4, 3, 3, 2), (3, 2, 2, 2)),
            16,
            ("writer", "rec1", "rec2", "reader"),
            {
                FaultKind.POWER: 4,
                FaultKind.DIES_WRITING: 4,
                FaultKind.ROT: 3,
                FaultKind.DISK_FAILS: 2,
                FaultKind.DISK_FULL: 2,
                FaultKind.SLOW_DISK: 1,
            },
            6,
        ),
        Mix(
            "store",
            "the metadata store loses answers, ends sessions, tells late; writers and recoverers race to close",
            "takeover",
            SMALL,
            12,
            ("writer", "rec1", "rec2", "reader"),
            {
                FaultKind.STORE_CUT: 4,
                FaultKind.SESSION_LOST: 3,
                FaultKind.CLOCK_JUMP: 1,
                FaultKind.KILL: 2,
                FaultKind.CUT: 2,
            },
            6,
            lost=150,
        ),
        Mix(
            "log",
            "leaders duel over a log, roll and truncate it; readers follow; processes stand still and come back",
            "log",
            ((3, 3, 3, 2), (4, 3, 3, 2), (3, 2, 2, 2)),
            16,
            ("leader1", "leader2", "leader3", "reader", "trimmer"),
            {
                **_NETWORK,
                FaultKind.PAUSE: 5,
                FaultKind.KILL: 1,
                FaultKind.KILL_CLIENT: 2,
                FaultKind.STORE_CUT: 2,
                FaultKind.SESSION_LOST: 2,
            },
            6,
            lost=30,
        ),
        Mix(
            "cancelled",
            "three writers of a log wait for the lead, and each call of theirs may be cancelled on the way",
            "cancelled",
            ((3, 3, 3, 2), (4, 3, 3, 2), (3, 2, 2, 2)),
            16,
            ("leader1", "leader2", "leader3", "reader"),
            {**_NETWORK, FaultKind.KILL: 1, FaultKind.KILL_CLIENT: 2, FaultKind.STORE_CUT: 2},
            4,
        ),
        Mix(
            "silent",
            "connections swallow all that is sent, without an error; what lives must get through again",
            "takeover",
            SMALL,
            16,
            ("writer", "rec1", "rec2", "reader"),
            {
                FaultKind.SILENCE: 8,
                FaultKind.BREAK: 1,
                FaultKind.CUT: 1,
                FaultKind.PAUSE: 2,
                FaultKind.KILL: 1,
            },
            10,
        ),
        Mix(
            "descriptors",
            "bookies have no descriptor left for a while, during adds, recoveries and starts",
            "takeover",
            SMALL,
            16,
            ("writer", "rec1", "rec2", "reader"),
            {FaultKind.FEW_DESCRIPTORS: 8, FaultKind.KILL: 2, FaultKind.SLOW_DISK: 1, FaultKind.CUT: 1},
            6,
            padding=30_000,
        ),
        Mix(
            "repair",
            "a bookie is lost for ever; two repairers next to two writers and an owner who may delete; power cuts, pauses",
            "repair",
            ((4, 3, 3, 2), (5, 3, 3, 2), (4, 3, 2, 2), (4, 2, 2, 2), (5, 4, 3, 2)),
            16,
            ("writer1", "writer2", "repairer1", "repairer2", "owner"),
            {
                FaultKind.POWER: 4,
                FaultKind.KILL: 2,
                FaultKind.PAUSE: 4,
                FaultKind.CUT: 2,
                FaultKind.BREAK: 2,
                FaultKind.SLOW_LINK: 2,
                FaultKind.STORE_CUT: 1,
                FaultKind.KILL_CLIENT: 1,
            },
            6,
            lost=30,
        ),
        _streams(
            "streams",
            "leaders of two elections take a stream over from each other, a repairer copies, a bookie may be lost for ever; pauses, power cuts, lost store answers, clock jumps",
            StreamMode.IDENTIFIERS,
        ),
        _streams("fencing", "the same with a stream whose terms only fence", StreamMode.FENCING),
        Mix(
            "autorecovery",
            "three daemons audit and repair by themselves; a bookie is lost for ever, sessions end, clocks jump; holes are marked, an owner deletes",
            "autorecovery",
            ((4, 3, 3, 2), (5, 3, 3, 2), (4, 3, 2, 2), (3, 3, 3, 2), (4, 2, 2, 2), (5, 4, 3, 2)),
            16,
            ("writer1", "writer2", "repairer1", "repairer2", "repairer3", "inspector", "owner"),
            {
                FaultKind.POWER: 3,
                FaultKind.KILL: 3,
                FaultKind.PAUSE: 3,
                FaultKind.CUT: 2,
                FaultKind.STORE_CUT: 3,
                FaultKind.SESSION_LOST: 3,
                FaultKind.CLOCK_JUMP: 2,
                FaultKind.KILL_CLIENT: 2,
            },
            6,
            lost=30,
        ),
        Mix(
            "marks",
            "writers, recoveries and take-overs leave holes, daemons fill them, an owner deletes, an inspector looks; at rest each hole is marked",
            "marks",
            ((3, 3, 3, 2), (4, 3, 3, 2), (5, 3, 3, 2), (4, 3, 2, 2), (5, 4, 3, 2)),
            16,
            (
                "writer1",
                "writer2",
                "leader1",
                "leader2",
                "repairer1",
                "repairer2",
                "inspector",
                "scrubber",
                "owner",
                "rec1",
                "rec2",
            ),
            {
                FaultKind.KILL: 4,
                FaultKind.PAUSE: 4,
                FaultKind.CUT: 4,
                FaultKind.SLOW_LINK: 4,
                FaultKind.BREAK: 2,
                FaultKind.ISOLATE: 1,
                FaultKind.DISK_FULL: 2,
                FaultKind.STORE_CUT: 1,
                FaultKind.SESSION_LOST: 2,
                FaultKind.KILL_CLIENT: 4,
            },
            8,
            lost=30,
            mode=None,
        ),
        Mix(
            "write-quorum",
            "as takeover, with ledgers that guarantee their write quorum: after healing every entry is on all of it",
            "takeover",
            ((3, 3, 3, 2), (4, 3, 3, 2), (3, 2, 2, 1), (4, 4, 3, 2), (5, 4, 3, 2)),
            16,
            ("writer", "rec1", "rec2", "reader"),
            {**_NETWORK, **_CRASHES},
            6,
            guarantee="write_quorum",
        ),
    )
}


@dataclass(slots=True)
class Settings:
    """One run.

    Attributes:
        shape: bookies, E, Qw, Qa.
        entries: of each writer.
        burst: adds that a writer has in flight at most.
        apart: each add is a run of its own, however many are in flight.
        takeover_at: the add at which the first recovery begins; the second begins `second_ns` later.
        closes: the writer closes its ledger at the end.
        mode: of its streams.
        impatience: of each client: what its time-outs are multiplied by, below 1 or above.
        link_levels: (source, target) -> how slow from the beginning.
        turn_ns: of processes that are slow.
        slow_disks: bookie -> how slow.
    """

    mix: Mix
    shape: tuple[int, int, int, int]
    entries: int
    burst: int
    takeover_at: int
    second_ns: int
    closes: bool
    network: NetworkSettings
    store: StoreSettings
    disk: DiskSettings
    faults: list[Fault]
    digest: str
    apart: bool
    mode: StreamMode = StreamMode.IDENTIFIERS
    impatience: dict[str, float] = field(default_factory=dict)
    link_levels: dict[tuple[str, str], float] = field(default_factory=dict)
    turn_ns: dict[str, int] = field(default_factory=dict)
    slow_disks: dict[str, float] = field(default_factory=dict)

    @property
    def bookies(self) -> list[str]:
        """Their names."""
        return [f"b{number}" for number in range(self.shape[0])]


def draw(mix: Mix, chance: random.Random) -> Settings:
    """The settings of one run."""
    shape = chance.choice(mix.shapes)
    names = [f"b{number}" for number in range(shape[0])]
    entries = 1 + chance.randrange(mix.entries)
    settings = Settings(
        mix=mix,
        shape=shape,
        entries=entries,
        burst=chance.choice((1, 2, 4, entries)),
        takeover_at=1 + chance.randrange(entries),
        second_ns=chance.choice((0, MS, 5 * MS, 50 * MS, 400 * MS)),
        closes=chance.random() < 0.5,
        network=NetworkSettings(
            base_ns=chance.choice((50_000, 200_000, 1_000_000)), tail=chance.choice((0.0, 0.5, 0.8, 1.1))
        ),
        store=StoreSettings(
            base_ns=chance.choice((100_000, 500_000, 3_000_000)),
            lost_requests=mix.lost,
            lost_answers=mix.lost,
        ),
        disk=DiskSettings(
            job_ns=chance.choice((100_000, 500_000, 5_000_000)),
            direct=chance.getrandbits(1) == 1,
            inline=chance.getrandbits(1) == 1,
        ),
        faults=draw_faults(chance, mix.weights, chance.randint(0, mix.faults), names, mix.clients),
        digest=chance.choice(("crc32c", "crc32c", "crc32", "mac", "dummy")),
        apart=chance.random() < 0.7,
    )
    _swarm(settings, chance, names)
    if mix.name == "hunt":
        _hunt(settings, chance, names)
    settings.mode = mix.mode or chance.choice([*StreamMode])
    if mix.workload == "marks":
        settings.disk.collect_s = chance.choice((0.2, 3.0))
        # Who looks is slow: a ledger is deleted between its record and its lists, a mark is made between a repair and its end.
        if chance.random() < 0.3:
            settings.turn_ns["inspector"] = chance.randrange(100, 400) * MS
        elif chance.random() < 0.4:
            settings.turn_ns |= {name: chance.randrange(10, 200) * MS for name in ("repairer1", "repairer2")}
    is_lost = mix.workload in {"repair", "autorecovery"}
    if (
        mix.workload == "streams"
    ):  # with Qa = 1 the lost bookie may be the only one that acknowledged an entry
        bookies, size, _, ack_quorum = settings.shape
        is_lost = chance.random() < 0.4 and ack_quorum > 1
        if mix.mode is StreamMode.FENCING:
            is_lost = is_lost and bookies > size  # without a spare a take-over waits for ever
    if is_lost:
        when = min(int(5 * MS * (1.0 - chance.random()) ** -1.0), 4000 * MS)
        settings.faults.append(Fault(Phase.BEGIN, when, FaultKind.LOST, chance.choice(names)))
    return settings


def _hunt(settings: Settings, chance: random.Random, names: list[str]) -> None:
    """Ensembles change under load, and who waits waits for too short or for very long."""
    settings.burst = chance.choice((4, settings.entries))
    settings.impatience["writer"] = chance.choice((0.03, 0.1, 1.0, 10.0))
    for recoverer in ("rec1", "rec2"):
        settings.impatience[recoverer] = chance.choice((0.01, 0.03, 1.0))
    settings.second_ns = chance.choice((0, 0, MS, 5 * MS))
    settings.apart = True
    if chance.getrandbits(1):
        # Adds that get to some bookies only: what recoverers find depends on the bookies that respond.
        for name in chance.sample(names, chance.choice((2, 3))):
            settings.link_levels["writer", name] = 1000.0
        settings.faults.append(
            Fault(Phase.TAKEOVER, chance.randrange(20) * MS // 10, FaultKind.KILL_CLIENT, "writer")
        )
    after = chance.randrange(1, 12) * MS // 2
    lasts = chance.choice((20 * MS, 600 * MS, 0))
    strike = chance.choice((FaultKind.KILL, FaultKind.POWER, FaultKind.BREAK, FaultKind.SLOW_LINK))
    other = "writer" if strike in LINKS else ""
    settings.faults.append(Fault(Phase.BEGIN, after, strike, chance.choice(names), other, 1000, lasts))


def _swarm(settings: Settings, chance: random.Random, names: list[str]) -> None:
    """What this run is like throughout."""
    clients = settings.mix.clients
    if chance.random() < 0.3:
        settings.slow_disks[chance.choice(names)] = chance.choice((20.0, 200.0))
    if chance.random() < 0.3:
        settings.impatience[chance.choice(clients)] = chance.choice((0.02, 0.1, 10.0))
    if chance.random() < 0.2:
        settings.turn_ns[chance.choice([*names, *clients])] = chance.choice((MS, 20 * MS))
    style = chance.random()
    if style < 0.3:
        settings.link_levels[_pair(chance, clients, names)] = chance.choice((30.0, 1000.0))
    elif style < 0.6:
        # Priorities: every link has one of four, far apart, so that whole exchanges overtake one another.
        for client in clients:
            for name in names:
                settings.link_levels[client, name] = float(8 ** chance.randrange(4))
                settings.link_levels[name, client] = float(8 ** chance.randrange(3))


def _pair(chance: random.Random, clients: tuple[str, ...], names: list[str]) -> tuple[str, str]:
    pair = (chance.choice(clients), chance.choice(names))
    return pair if chance.getrandbits(1) else (pair[1], pair[0])
