"""Claim P18: 100 B adds to many open ledgers in turn, against the better of Java's V2 and V3, as it ships and tuned.

At 100, 1,000 and 10,000 ledgers, 5,000 adds outstanding in all. *As they come* is what a program gets that does nothing
about it: what waits for one ledger while a turn lasts shares a frame. *A frame an entry* (`run_bytes_max=1`) is what is
left where entries never meet; with 10,000 ledgers they do not anyway. Then tasks that await one append each, to one
ledger; Java's are adds that begin when one before is acknowledged, as many outstanding. Python's collector is as it comes
(`--collector python`); all pairs have all four settings of Java beside ours, and the best of them counts.

Without a bar: one outstanding add for each ledger, windows from 1 to 5,000 on one ledger, and what
`quire.keep_collections_short` changes. All entries of all ledgers are read back at the end.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import JavaPeer, LoadClient, QuireCluster

SIZE = 100
WINDOW = 5000
THOUSAND = 1_000
LEDGERS = (100, THOUSAND, 10_000)
TASKS = (100, 5_000)
WINDOWS = (1, 10, 100, 1_000, 5_000)
CPU_US_MAX = 25
RATE, IDLE, CROWD_SECONDS = 2_000, 200, 5
WARM_UP_ADDS = 200_000
READ_BACK_SECONDS = 1_800
"""Java reads one entry after another back, over V3 with a frame for each."""
OURS, FRAMES = "Quire", "Quire, a frame an entry"

Result = dict[str, Any]
Job = Callable[[str], Sequence[object]]


def cpu_us(result: Result) -> float:
    """CPU microseconds per entry, all processes together."""
    return float(result["client_cpu_us"] + result["bookies_cpu_us"])


class Sides:
    """The clients of both sides, and the figures of the rounds that they have run."""

    def __init__(self, clients: dict[str, LoadClient], seconds: float) -> None:
        self._clients = clients
        self._seconds = seconds

    @property
    def java(self) -> list[str]:
        """Java's settings."""
        return [name for name in self._clients if name.startswith("Java")]

    def round(self, job: Job, ours: Sequence[str] = (OURS,)) -> dict[str, Result]:
        """One round of each side."""
        names = (*ours, *self.java)
        found = {}
        for name in names:
            client = self._clients[OURS if name == FRAMES else name]
            found[name] = client.run(*job(name))
        return found

    def ours(self, *words: object) -> Result:
        """A round of ours alone."""
        return self._clients[OURS].run(*words)

    def many(self, ledgers: int, window: int) -> Job:
        """Adds to so many ledgers in turn."""
        words = ("round-robin", ledgers, self._seconds, window, SIZE)
        return lambda name: (*words, "frames=1") if name == FRAMES else words

    def tasks(self, count: int) -> Job:
        """Tasks that await one append each."""
        return lambda name: (
            ("tasks", count, self._seconds, SIZE) if name == OURS else ("append", SIZE, self._seconds, count)
        )

    def window(self, window: int) -> Job:
        """One ledger with so many adds outstanding."""
        return lambda _: ("append", SIZE, self._seconds, window)

    def open(self, ledgers: int, ours: Sequence[str]) -> None:
        """Open so many ledgers at each, for each kind of frames ours: it has a client of its own."""
        for name in (*ours, *self.java):
            words = ("open-many", ledgers, SIZE, *(["frames=1"] if name == FRAMES else []))
            self._clients[OURS if name == FRAMES else name].run(*words)
        say(f"  {ledgers:,} more ledgers are open")

    def close(self) -> dict[str, str]:
        """Close, read back, compare and delete all of them; says what became of each side.

        A peer that cannot read its entries back is said so: with more ledgers than files it may have open, Java's default
        storage denies entries that it has. Its figures stand; if we cannot, nothing does.
        """
        found = {}
        for name in (OURS, *self.java):
            try:
                verified = self._clients[name].run("close-many", SIZE, seconds=READ_BACK_SECONDS)["verified"]
                found[name] = f"{verified:,} entries read back"
            except RuntimeError as error:
                if name == OURS:
                    raise
                found[name] = f"failed: {str(error).partition(' (log: ')[0]}"
            say(f"  {name}: {found[name]}")
        return found


def kinds_of(ledgers: int) -> tuple[str, ...]:
    """The kinds of our frames that differ at so many ledgers."""
    return (OURS, FRAMES) if ledgers < WINDOW else (OURS,)


def claims_of(ledgers: int) -> dict[str, Claim]:
    """The claims at so many ledgers, of each kind of our frames and of the CPU."""
    where = f"100 B adds in turn to {ledgers:,} ledgers"
    found = {
        OURS: Claim(
            f"P18-{ledgers:,}",
            f"{where}, as they come, against the best Java, tuned or as it ships (aim 4)",
            "entries/s",
            2.0,
        ),
        FRAMES: Claim(
            f"P18-frames-{ledgers:,}",
            f"{where}, a frame an entry, against the best Java, tuned or as it ships (aim 2)",
            "entries/s",
            1.0,
        ),
        "cpu": Claim(
            f"P18-cpu-{ledgers:,}",
            f"CPU of an add to {ledgers:,} ledgers, all processes, against {CPU_US_MAX} us (aim 15)",
            "us",
            1.0,
            higher_is_better=False,
        ),
    }
    return {kind: claim for kind, claim in found.items() if kind == "cpu" or kind in kinds_of(ledgers)}


def median_of(rounds: Sequence[dict[str, Result]], figure: Callable[[Result], float]) -> dict[str, float]:
    """The median of a figure over some rounds, by side."""
    return {name: round(statistics.median(figure(one[name]) for one in rounds), 1) for name in rounds[0]}


def entries_per_s(result: Result) -> float:
    """The rate of a round."""
    return float(result["entries_per_s"])


def many_ledgers(sides: Sides, ledgers: int, pairs: int, parameters: dict[str, Any]) -> list[Comparison]:
    """All pairs at one number of ledgers."""
    made = {kind: Comparison(claim, parameters) for kind, claim in claims_of(ledgers).items()}
    job, ours = sides.many(ledgers, WINDOW), kinds_of(ledgers)
    sides.round(job, ours)  # each ledger's first entries are slower, its state is written with them
    rounds, one_each = [], []
    for _ in range(pairs):
        load = load_average()
        found = sides.round(job, ours)
        rounds.append(found)
        java = {name: entries_per_s(found[name]) for name in sides.java}
        for kind in ours:
            pair = made[kind].add(entries_per_s(found[kind]), java, load)
            say(f"  {made[kind].claim.name}: {pair.ours:,.0f}/s, {java} -> {pair.ratio:.2f}")
        pair = made["cpu"].add(cpu_us(found[OURS]), {"bar": CPU_US_MAX}, load)
        say(f"  {made['cpu'].claim.name}: {pair.ours:.1f} us")
        one_each.append(sides.round(sides.many(ledgers, 0)))
    first = made[OURS]
    first.extra["cpu_us_per_entry"] = median_of(rounds, cpu_us)
    first.extra["of_it_the_client"] = median_of(rounds, lambda one: float(one["client_cpu_us"]))
    first.extra["one_outstanding_add_for_each_ledger,_entries_per_s"] = median_of(one_each, entries_per_s)
    first.extra["one_outstanding_add_for_each_ledger,_cpu_us_per_entry"] = median_of(one_each, cpu_us)
    first.extra["entries_per_s"] = median_of(rounds, entries_per_s)
    return list(made.values())


def tasks(sides: Sides, count: int, pairs: int, parameters: dict[str, Any]) -> Comparison:
    """All pairs with so many tasks."""
    claim = Claim(
        f"P18-tasks-{count:,}",
        f"{count:,} tasks that await one 100 B append each, against the best Java, tuned or as it ships (aim 3)",
        "entries/s",
        1.5,
    )
    made = Comparison(claim, parameters)
    rounds = []
    for _ in range(pairs):
        load = load_average()
        found = sides.round(sides.tasks(count))
        rounds.append(found)
        pair = made.add(
            entries_per_s(found[OURS]), {name: entries_per_s(found[name]) for name in sides.java}, load
        )
        say(f"  {claim.name}: {pair.ours:,.0f}/s, {pair.peer_kind} {pair.peer:,.0f}/s -> {pair.ratio:.2f}")
    made.extra["cpu_us_per_entry"] = median_of(rounds, cpu_us)
    return made


def crowd(sides: Sides, pairs: int, parameters: dict[str, Any]) -> Comparison:
    """Adds to 1,000 ledgers at a rate, beside idle connections and a slow reader at each bookie, and without."""
    claim = Claim(
        "P18-crowd",
        f"p99 of adds to 1,000 ledgers at {RATE:,} a second beside {IDLE} idle connections and a slow reader",
        "us",
        0.667,
        higher_is_better=False,
    )
    made = Comparison(claim, parameters | {"rate": RATE, "idle": IDLE})
    memory: list[float] = []
    for _ in range(pairs):
        load = load_average()
        alone, beside = (sides.ours("crowded", 1_000, CROWD_SECONDS, RATE, SIZE, idle) for idle in (0, IDLE))
        memory += beside["bookies_mib"]
        pair = made.add(beside["p99_us"], {"without them": alone["p99_us"]}, load)
        say(f"  {claim.name}: {pair.ours:,.0f} us, without {pair.peer:,.0f} us -> {pair.ratio:.2f}")
    made.extra["largest_bookie_mib"] = max(memory)
    return made


def windows(sides: Sides, made: Comparison) -> None:
    """One ledger with growing windows, both sides, for the first claim's extra figures."""
    for window in WINDOWS:
        found = sides.round(sides.window(window))
        best = max(sides.java, key=lambda name: entries_per_s(found[name]))
        made.extra[f"one ledger, window {window:,}"] = {
            name: f"{entries_per_s(found[name]):,.0f}/s, {cpu_us(found[name]):.1f} us"
            for name in (OURS, best)
        }


def collector(cluster: QuireCluster, sides: Sides, made: Comparison, pairs: int) -> None:
    """What `quire.keep_collections_short` changes at a client with 1,000 ledgers, in alternation."""
    with ExitStack() as stack:
        kinds = {kind: stack.enter_context(cluster.client(collector=kind)) for kind in ("python", "short")}
        rounds = []
        for client in kinds.values():
            client.run("open-many", 1_000, SIZE)
            client.run(*sides.many(1_000, WINDOW)(OURS))
        for _ in range(pairs):
            rounds.append(
                {kind: client.run(*sides.many(1_000, WINDOW)(OURS)) for kind, client in kinds.items()}
            )
        for client in kinds.values():
            client.run("close-many", SIZE)
    ratios = [one["short"]["client_cpu_us"] / one["python"]["client_cpu_us"] for one in rounds]
    made.extra["client's CPU with keep_collections_short over without"] = round(statistics.median(ratios), 3)


def growth(comparisons: Sequence[Comparison], figure: str, title: str, unit: str) -> dict[str, Any]:
    """A figure over the number of ledgers, for `tools/plots.py`."""
    # A kind of frames that does not differ everywhere is left out.
    names = [
        name for name in comparisons[0].extra[figure] if all(name in one.extra[figure] for one in comparisons)
    ]
    return {
        "title": title,
        "unit": unit,
        "of": "open ledgers",
        "at": [comparison.parameters["ledgers"] for comparison in comparisons],
        "series": {name: [one.extra[figure][name] for one in comparisons] for name in names},
    }


def measure(given: Any) -> list[Comparison]:
    """Run everything; the number of open ledgers only grows."""
    pairs, seconds = given.pairs, given.seconds
    parameters = {
        "size": SIZE,
        "window": WINDOW,
        "seconds": seconds,
        "quorum": "E=3 Qw=3 Qa=2",
        "sync": "both sides sync before they answer",
        "collector": "Python's as it comes",
    }
    made: list[Comparison] = []
    with ExitStack() as stack:
        peers = {
            "default": stack.enter_context(JavaPeer("java-default")),
            "tuned": stack.enter_context(JavaPeer("java-tuned", tuned=True)),
        }
        ours = stack.enter_context(QuireCluster("quire-many"))
        clients = {OURS: stack.enter_context(ours.client(collector="python"))}
        for setting, peer in peers.items():
            for v2 in (True, False):
                clients[f"Java {'V2' if v2 else 'V3'} {setting}"] = stack.enter_context(peer.client(v2=v2))
        for client in clients.values():
            client.warm_up(WARM_UP_ADDS, SIZE)
            say(f"  {client.name} is warm")
        parameters["peer"] = peers["default"].version()
        sides = Sides(clients, seconds)
        alone: list[Comparison] = []
        if not given.ledgers or given.tasks:
            alone = [tasks(sides, count, pairs, parameters) for count in TASKS]
            windows(sides, alone[0])
        opened, grown = 0, []
        for ledgers in given.ledgers or LEDGERS:
            sides.open(ledgers - opened, kinds_of(ledgers))
            opened = ledgers
            grown += (found := many_ledgers(sides, ledgers, pairs, parameters | {"ledgers": ledgers}))[:1]
            made += found
            if ledgers == THOUSAND:
                made.append(crowd(sides, pairs, parameters))
        grown[-1].extra["read back"] = sides.close()
        if given.collector:
            collector(ours, sides, grown[0], pairs)
    if len(grown) > 1:
        grown[-1].plots["growth"] = growth(
            grown, "entries_per_s", "100 B adds in turn, 5,000 outstanding", "entries/s"
        )
    return made + alone


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--seconds", type=float, default=3.0, help="length of a round (default %(default)s)")
    options.add_argument("--ledgers", type=int, choices=LEDGERS, action="append", help="only so many ledgers")
    options.add_argument("--tasks", action="store_true", help="with --ledgers: the tasks and windows as well")
    options.add_argument(
        "--no-collector", dest="collector", action="store_false", help="without the rounds of the collector"
    )
    given = options.parse_args()
    if given.ledgers:
        given.ledgers = sorted(given.ledgers)
    return harness.main("many_ledgers", given, lambda: measure(given))


if __name__ == "__main__":
    sys.exit(main())
