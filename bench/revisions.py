"""CPU per entry of this tree beside an earlier revision of it, by turns: what a change costs.

Both sides are whole clusters of real processes, three bookies and a load client each, up at the same time; their rounds are
short and alternate. A pair's ratio is ours over theirs, so above 1 we need more. What counts is the median of all pairs, with
the interval that holds it in 95 of 100 cases (the order statistics of a binomial): it says how much of the figure is noise.

    .venv/bin/python bench/revisions.py --against 9e5fe3a --pairs 30
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from accounting import load_average
from harness import keep
from peers import ROOT, LoadClient, QuireCluster

PAIRS = 30
SESSION_PAIRS = 3
MARGIN = 1.02
WINDOW = 5000
READ_ENTRIES = 200_000


@dataclass(frozen=True)
class Part:
    """One kind of work: how a side is made ready for it, and its round."""

    name: str
    prepare: Callable[[LoadClient], tuple[object, ...]]


def adds(size: int, seconds: float, window: int = WINDOW) -> Callable[[LoadClient], tuple[object, ...]]:
    """Adds with a full window, for so long that all pairs fit on the disk."""
    return lambda _: ("append", size, seconds, window)


def one_add(_: LoadClient) -> tuple[object, ...]:
    """One add at a time."""
    return "latency", 1024, 4000


def catch_up(client: LoadClient) -> tuple[object, ...]:
    """Reads of a closed ledger, many entries at a time."""
    (ledger_id,) = client.run("fill-ledgers", 1, READ_ENTRIES, 1024, WINDOW)["ledgers"]
    return "read-ledger", ledger_id, READ_ENTRIES, 1024, 5, "by=run"


def in_turn(*options: str) -> Callable[[LoadClient], tuple[object, ...]]:
    """Adds to 1,000 ledgers in turn, as they come or with a frame for each entry."""

    def prepare(client: LoadClient) -> tuple[object, ...]:
        client.run("open-many", 1000, 100, *options)
        return "round-robin", 1000, 1.5, WINDOW, 100, *options

    return prepare


PARTS = (
    Part("100 B adds", adds(100, 1.5)),
    Part("1 KB adds", adds(1024, 0.5)),
    Part("one 1 KB add", one_add),
    Part("catch-up read, 1 KB", catch_up),
    Part("64 KB adds", adds(65536, 0.5, 300)),
    Part("1,000 ledgers, as they come", in_turn()),
    Part("1,000 ledgers, a frame an entry", in_turn("frames=1")),
)


def unpack(revision: str, directory: Path) -> None:
    """Put a revision's source and its load client into a directory."""
    command = ["git", "-C", str(ROOT), "archive", "--format=zip", revision, "src", "bench"]
    done = subprocess.run(command, capture_output=True, check=True)
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        archive.extractall(directory)


def interval(ratios: Sequence[float], certainty: float = 0.95) -> tuple[float, float]:
    """The narrowest pair of order statistics that holds the median with this certainty."""
    ordered, count = sorted(ratios), len(ratios)
    covered = 0.0
    for low in range((count - 1) // 2, -1, -1):
        covered = sum(math.comb(count, k) for k in range(low + 1, count - low)) / 2**count
        if covered >= certainty:
            return ordered[low], ordered[count - 1 - low]
    return ordered[0], ordered[-1]


OURS, THEIRS = "ours", "theirs"
Figures = dict[str, list[float]]


def session(
    part: Part, roots: Mapping[str, Path], order: Sequence[str], pairs: int, figures: Figures
) -> None:
    """Some pairs on clusters of their own, started and filled in an order; which side is first changes with each pair.

    Where processes and files come to lie matters more than what is compared: within one session the same revision on both
    sides differs by up to five percent. And what all sessions write would not fit on a disk.
    """
    with ExitStack() as stack:
        clients: dict[str, LoadClient] = {}
        for side in order:
            cluster = stack.enter_context(QuireCluster(f"revision-{side}", root=roots[side]))
            clients[side] = stack.enter_context(cluster.client())
        jobs = {side: part.prepare(clients[side]) for side in order}
        for side in order:
            clients[side].run(*jobs[side])  # warm
        for number in range(pairs):
            for side in order if number % 2 else reversed(order):
                done = clients[side].run(*jobs[side])
                figures[side].append(float(done["client_cpu_us"]) + float(done["bookies_cpu_us"]))


def compare(part: Part, roots: Mapping[str, Path], pairs: int) -> dict[str, object]:
    """All pairs of one part, in sessions that begin with our cluster and with theirs in turn."""
    figures: Figures = {OURS: [], THEIRS: []}
    orders = itertools.cycle(((OURS, THEIRS), (THEIRS, OURS)))
    for start in range(0, pairs, SESSION_PAIRS):
        session(part, roots, next(orders), min(SESSION_PAIRS, pairs - start), figures)
    ratios = [ours / theirs for ours, theirs in zip(figures[OURS], figures[THEIRS], strict=True)]
    low, high = interval(ratios)
    median = statistics.median(ratios)
    return {
        "part": part.name,
        "ours_us": round(statistics.median(figures[OURS]), 3),
        "theirs_us": round(statistics.median(figures[THEIRS]), 3),
        "ratio": round(median, 4),
        "interval": [round(low, 4), round(high, 4)],
        "pairs": pairs,
        "load": load_average(),
        "within": median <= MARGIN,
    }


def save(against: str, pairs: int, results: Sequence[dict[str, object]]) -> None:
    """Keep the results beside those of the full rounds of tests."""
    figures = {
        f"{found['part']}: ratio and 95 % interval": f"{found['ratio']} {found['interval']}"
        for found in results
    }
    command = f"revisions.py --against {against} --pairs {pairs} --save"
    keep(f"cpu_per_entry_beside_{against}", figures, results, command)


def main() -> int:
    """Compare, print a line a part, and say whether all are within the margin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", required=True, help="the earlier revision")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--only", action="append", help="a part by the beginning of its name")
    parser.add_argument("--json", action="store_true", help="one object per line")
    parser.add_argument("--save", action="store_true", help="keep the results in docs/proof")
    given = parser.parse_args()
    wanted = [part for part in PARTS if not given.only or part.name.startswith(tuple(given.only))]
    results = []
    with tempfile.TemporaryDirectory(prefix="quire-revision-") as directory:
        unpack(given.against, Path(directory))
        for part in wanted:
            found = compare(part, {OURS: ROOT, THEIRS: Path(directory)}, given.pairs)
            results.append(found)
            text = (
                f"{part.name}: {found['ours_us']} us beside {found['theirs_us']} us at {given.against}: ratio "
                f"{found['ratio']} (95 % interval {found['interval']}) in {given.pairs} pairs"
            )
            sys.stdout.write((json.dumps(found) if given.json else text) + "\n")
            sys.stdout.flush()
    if given.save:
        save(given.against, given.pairs, results)
    return 0 if all(found["within"] for found in results) else 1


if __name__ == "__main__":
    sys.exit(main())
