"""A comparison: pairs of rounds in one run, alternating, and what is said about them.

A claim is a figure of ours against a peer's. Its ratio is made per pair, because the machine changes from minute to
minute and hits both rounds of a pair alike; the result is the median of the pair ratios, and the worst pair is shown.
A ratio above 1 is in our favour.

How to compare fairly is kept in docs/performance.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accounting import Machine, free_gib, load_average, pin_to
from peers import OUT, ROOT, PeerMissingError

RESULTS = Path(__file__).resolve().parent / "results"
CPUS = 2
SPACE_GIB = 24
SPACE_SECONDS = 300
"""Deleted ledgers give their space back within two to three minutes, on both sides."""
WORST_PAIR_SHARE = 0.7
"""No single pair may fall below this share of the bar."""


@dataclass(frozen=True)
class Claim:
    """What is claimed.

    Args:
        name: the claim's short name, as in docs/performance.md.
        text: one line for a person.
        unit: of both figures.
        bar: the ratio that must be reached, as the median.
        higher_is_better: throughput; False for latency, CPU and memory.
    """

    name: str
    text: str
    unit: str
    bar: float
    higher_is_better: bool = True

    def ratio(self, ours: float, peer: float) -> float:
        """Ours against the peer's, above 1 in our favour."""
        return ours / peer if self.higher_is_better else peer / ours


@dataclass
class Pair:
    """One round of each side, one right after the other."""

    ours: float
    peer: float
    peer_kind: str
    ratio: float
    load: float


@dataclass
class Comparison:
    """A claim and its pairs.

    Args:
        claim: what is claimed.
        parameters: how it was measured, for the result file.
        pairs: the rounds so far.
        extra: figures without a bar, printed under the table and saved.
        plots: what `tools/plots.py` draws, saved but not printed. `timeline`: `{"title", "unit", "seconds": [...],
            "series": {name: [...]}}`. `histogram`: `{"title", "unit", "series": {name: [at most 400 sorted
            quantiles]}}`. `growth`: `{"title", "unit", "of", "at": [...], "series": {name: [...]}}`.
    """

    claim: Claim
    parameters: dict[str, Any]
    pairs: list[Pair] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    plots: dict[str, Any] = field(default_factory=dict)

    def add(self, ours: float, peers: dict[str, float], load: float) -> Pair:
        """Take one pair; where the peer has several settings, the better one counts."""
        better = max if self.claim.higher_is_better else min
        kind = better(peers, key=lambda name: peers[name])
        pair = Pair(ours, peers[kind], kind, round(self.claim.ratio(ours, peers[kind]), 3), load)
        self.pairs.append(pair)
        return pair

    @property
    def ratio(self) -> float:
        """The median of the pair ratios."""
        return round(statistics.median(pair.ratio for pair in self.pairs), 3)

    @property
    def worst(self) -> float:
        """The worst pair's ratio."""
        return min(pair.ratio for pair in self.pairs)

    @property
    def middle(self) -> int:
        """The number of a pair whose ratio is in the middle: the one to draw when only one is drawn."""
        order = sorted(range(len(self.pairs)), key=lambda number: self.pairs[number].ratio)
        return order[(len(order) - 1) // 2]

    @property
    def holds(self) -> bool:
        """Whether the bar is reached, and no pair is far below it."""
        return self.ratio >= self.claim.bar and self.worst >= WORST_PAIR_SHARE * self.claim.bar

    def summary(self) -> dict[str, Any]:
        """The line of `--json`, and with `plots` beside it the claim's part of the result file."""
        return {
            "claim": self.claim.name,
            "text": self.claim.text,
            "unit": self.claim.unit,
            "ours": _rounded(statistics.median(pair.ours for pair in self.pairs)),
            "peer": _rounded(statistics.median(pair.peer for pair in self.pairs)),
            "ratio": self.ratio,
            "worst": self.worst,
            "bar": self.claim.bar,
            "holds": self.holds,
            "pairs": [asdict(pair) for pair in self.pairs],
            "parameters": self.parameters,
            **self.extra,
        }


def _rounded(figure: float) -> float:
    """Three digits at least: a microsecond of CPU needs them, a rate does not."""
    return round(figure, 1 if figure >= 100 else 3)


def parser(text: str, *, pairs: int = 5) -> argparse.ArgumentParser:
    """The options that every script has."""
    options = argparse.ArgumentParser(description=text)
    options.add_argument("--pairs", type=int, default=pairs, help="rounds of each side (default %(default)s)")
    options.add_argument(
        "--json", action="store_true", help="progress to stderr, one JSON object per claim last"
    )
    options.add_argument("--save", action="store_true", help="write bench/results/<script>.json")
    options.add_argument(
        "--cpus", type=int, default=CPUS, help="CPUs that everything shares (default %(default)s)"
    )
    return options


def main(name: str, given: argparse.Namespace, measure: Callable[[], Sequence[Comparison]]) -> int:
    """Run a script's comparisons and report them.

    Args:
        name: the script's, which names its result file.
        given: the parsed options of `parser`.
        measure: runs the pairs.

    Returns:
        The exit status: 0 when every bar holds, 1 when one does not, 2 when the peer cannot run here.
    """
    OUT.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    signal.signal(
        signal.SIGTERM, lambda number, _: sys.exit(128 + number)
    )  # the clusters are stopped on the way out
    cpus = pin_to(given.cpus)
    say(f"{name}: {given.pairs} pairs on CPUs {cpus}, load {load_average()}")
    try:
        comparisons = measure()
    except PeerMissingError as missing:
        say(f"{name}: SKIPPED: {missing}")
        return 2
    made = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": asdict(Machine.here(OUT, len(cpus))),
    }
    for comparison in comparisons:
        say(table(comparison))
    say(f"{name}: {time.monotonic() - start:.0f} s")
    if given.save:
        save(RESULTS / f"{name}.json", made, comparisons)
    if given.json:
        for comparison in comparisons:
            sys.stdout.write(json.dumps({**comparison.summary(), **made}) + "\n")
    return 0 if all(comparison.holds for comparison in comparisons) else 1


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Do something in a thread until the block ends: `work` gets an event, and is to return soon after it is set."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def end_on_sigterm() -> None:
    """Let SIGTERM unwind this process, so that the clusters are stopped on the way out; a second one changes nothing."""

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


def table(comparison: Comparison) -> str:
    """Both sides, pair by pair."""
    claim = comparison.claim
    lines = [
        "",
        f"{claim.name}: {claim.text}",
        f"  {'pair':>4} {'ours':>12} {'peer':>12}  {'ratio':>6}  {'load':>5}  peer is",
    ]
    lines += [
        f"  {number:>4} {pair.ours:>12,.1f} {pair.peer:>12,.1f}  {pair.ratio:>6.2f}  {pair.load:>5.1f}  {pair.peer_kind}"
        for number, pair in enumerate(comparison.pairs, 1)
    ]
    verdict = "holds" if comparison.holds else "MISSED"
    lines.append(
        f"  median ratio {comparison.ratio:.2f}, worst pair {comparison.worst:.2f}; bar {claim.bar}: {verdict} ({claim.unit})"
    )
    lines += [f"  {key}: {value}" for key, value in comparison.extra.items()]
    return "\n".join(lines)


def save(path: Path, made: dict[str, Any], comparisons: Sequence[Comparison]) -> None:
    """Write the result file that is committed: figures, plots, parameters, and where and when each was made.

    Claims of the script that were not measured this time stay as they are, with their own date and revision.
    """
    path.parent.mkdir(exist_ok=True)
    claims = (
        {claim["claim"]: claim for claim in json.loads(path.read_text())["claims"]} if path.exists() else {}
    )
    for comparison in comparisons:
        plots = {"plots": comparison.plots} if comparison.plots else {}
        claims[comparison.claim.name] = {**comparison.summary(), **made, **plots}
    result = {"script": f"bench/{path.stem}.py", "claims": list(claims.values())}
    path.write_text(_compact(json.dumps(result, indent=2)) + "\n")
    say(f"written: {path}")


def keep(proof: str, figures: dict[str, Any], rows: Sequence[dict[str, Any]], command: str) -> None:
    """Keep what has no peer beside the figures of the full rounds of tests, in docs/proof."""
    facts = {
        "proof": proof,
        "figures": figures,
        "rows": list(rows),
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": asdict(Machine.here(OUT, len(os.sched_getaffinity(0)))),
        "command": f".venv/bin/python bench/{command}",
    }
    path = ROOT / "docs" / "proof" / f"{proof}.json"
    path.write_text(_compact(json.dumps(facts, indent=1)) + "\n")
    say(f"written: {path}")


def _compact(text: str) -> str:
    """Lists of numbers on one line: a sample of 400 is one line of a difference, not 400."""
    return re.sub(r"\[[-\d.,\s]+\]", lambda match: " ".join(match[0].split()), text)


def wait_for_space() -> None:
    """Wait until both sides have given back what they deleted, if the disk has little room left for a pair."""
    deadline = time.monotonic() + SPACE_SECONDS
    if free_gib(OUT) < SPACE_GIB:
        say(f"  {free_gib(OUT):.0f} GiB are free; waiting until deleted ledgers have given back theirs")
    while free_gib(OUT) < SPACE_GIB and time.monotonic() < deadline:
        time.sleep(1)


def say(text: str) -> None:
    """Progress, on standard error, so that `--json` leaves standard output to the results."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
