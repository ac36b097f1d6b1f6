"""Campaigns of seeds whose number several runs reach together.

QUIRE_SEEDS=9000-19999 names the seeds of a full run. It runs in one process, so that a range each can be given to several, and
after every slice its figures are added to those of the proof's file, which names each range with its commit: a run that is cut
loses one slice. Without it a full run makes all of them, in two processes, and begins the file anew.
"""

import fcntl
import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict

from quire_testing.sim.campaign import campaign, some
from support.rounds import COMMIT, FULL, RESULTS, keep_figures, rounds

SLICE, SLICE_OF_ALL = 500, 10_000


def seeds_wanted(reduced, full):
    """The range of this run, and whether a run of its own was asked to make it."""
    named = os.environ.get("QUIRE_SEEDS", "") if FULL else ""
    if not named:
        return range(rounds(reduced, full)), False
    first, _, last = named.partition("-")
    if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
        msg = f"QUIRE_SEEDS={named}: a range of seeds has the form 9000-19999, both ends included"
        raise ValueError(msg)
    return range(int(first), int(last) + 1), True


def run_seeds(name, reduced, full, *, mixes, seen, runs=some, words=(), unit="runs", steps=""):
    """Run the seeds of a campaign, assert that nothing is violated, and add the figures to docs/proof/`name`.json.

    Args:
        name: of the proof.
        reduced: how many seeds `make test` runs.
        full: how many a full run makes that names none.
        mixes: which, in turn.
        seen: situations that must have occurred, and whose numbers are kept.
        runs: what runs some seeds, as for `campaign`.
        words: situations with one of these in their names are kept too.
        unit: what the number of seeds is called.
        steps: what the number of events is called; nothing if it is not kept.
    """
    wanted, named = seeds_wanted(reduced, full)
    size = SLICE if named else SLICE_OF_ALL
    total = {}
    refuse_twice(name, wanted, named)
    for first in range(wanted.start, wanted.stop, size):
        some_seeds = range(first, min(first + size, wanted.stop))
        tally = campaign(first, len(some_seeds), mixes=mixes, jobs=1 if named else 2, runs=runs)
        assert not tally.failures, [asdict(failure) for failure in tally.failures[:5]]
        assert tally.schedules == len(some_seeds)
        kept = {*seen, *(each for each in tally.seen if any(word in each for word in words))}
        part = {
            unit: tally.schedules,
            **({steps: tally.events} if steps else {}),
            **({"mixes": dict(tally.runs)} if len(mixes) > 1 else {}),
            "violations": 0,
            "seen": {each: tally.seen[each] for each in sorted(kept)},
            "cpu_seconds": round(tally.cpu_seconds),
        }
        total = summed(total, part)
        add_figures(name, some_seeds, part, anew=not named and first == wanted.start)
    if len(wanted) >= reduced:
        assert not [situation for situation in seen if not total["seen"][situation]]


def refuse_twice(name, wanted, named):
    """Seeds that the proof's file has already are not counted again."""
    for each in known_ranges(read_proof(name)) if named else ():
        first, last = (int(end) for end in each["seeds"].split(" to "))
        if first < wanted.stop and wanted.start <= last:
            msg = f"docs/proof/{name}.json has seeds {each['seeds']} of commit {each['commit']}: name a range beside them"
            raise ValueError(msg)


def read_proof(name):
    """The proof's file, nothing where there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def known_ranges(proof):
    """The ranges of a proof's file; one that was made at once is one range."""
    once = [{"seeds": proof["seed"], "commit": proof["commit"], "made": proof["made"]}] if proof else []
    return proof.get("rows", once)


def summed(one, other):
    """Two tallies of figures as one."""
    both = {**one, **other}
    return {
        key: summed(one.get(key, {}), other.get(key, {}))
        if isinstance(value, dict)
        else one.get(key, 0) + other.get(key, 0)
        for key, value in both.items()
    }


def add_figures(name, seeds, part, *, anew=False):
    """Add a slice to the proof's file, alone if it is the first of a file that begins anew."""
    if not FULL:
        keep_figures(name, part, seed=f"{seeds.start} to {seeds.stop - 1}")
        return
    with proofs_locked():
        proof = {} if anew else read_proof(name)
        rows = known_ranges(proof)
        made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        row = {"seeds": f"{seeds.start} to {seeds.stop - 1}", "commit": COMMIT, "made": made}
        before = [each for each in rows if each["seeds"].endswith(f" to {seeds.start - 1}")]
        if before and before[-1]["commit"] == COMMIT:
            rows.remove(before[-1])
            row["seeds"] = f"{before[-1]['seeds'].partition(' ')[0]} to {seeds.stop - 1}"
        rows.append(row)
        counted = {key: value for key, value in proof.get("figures", {}).items() if key in part}
        figures = summed(counted, part)
        keep_figures(name, figures, seed=", ".join(each["seeds"] for each in rows), rows=rows)


@contextmanager
def proofs_locked():
    """One process at a time adds to a file of docs/proof."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
