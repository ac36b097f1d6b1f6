"""Every benchmark, one after another; the results are saved under bench/results, and a table of all claims ends it.

Each script is a process of its own, so that nothing of one is in memory when the next begins.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import CPUS, end_on_sigterm, say

SCRIPTS = (
    "append",
    "java_wire",
    "latency",
    "read",
    "lifecycle",
    "zookeeper",
    "recovery",
    "restart",
    "many_ledgers",
    "flat",
    "wide",
    "tail",
    "failures",
    "repair",
    "memory",
    "written",
    "spark_read",
    "spark_write",
    "spark_stream",
    "spark_jobs",
    "spark_beside",
    "compacted",
    "spark_first",
)
"""In the order in which they run."""

FAILED = 3
"""The status of a script that did not end by itself; 0 to 2 are those of `harness.main`."""

SAID = {0: "all bars hold", 1: "a bar is MISSED", 2: "SKIPPED, a peer cannot run here", FAILED: "FAILED"}

Claim = dict[str, Any]


def run(name: str, words: Sequence[str]) -> tuple[int, list[Claim]]:
    """Run one script; its progress goes to standard error as it comes.

    Returns:
        Its status, and its claims.
    """
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), "--json", "--save", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as script:
        try:
            said, _ = script.communicate()
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt):  # the terminal interrupts the script as well
                script.terminate()
            script.wait()  # until it has stopped its clusters
            raise
    status = script.returncode if script.returncode in SAID else FAILED
    claims = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    if status == 1 and not claims:
        status = FAILED  # a traceback ends with 1 as well
    return status, claims


def summary(claims: Sequence[Claim], statuses: dict[str, int]) -> str:
    """The table of all claims, then the scripts that did not measure."""
    rows = [("claim", "bar", "ratio", "worst", "ours", "peer", "", "")]
    for claim in claims:
        rows.append(
            (
                claim["claim"],
                f"{claim['bar']:g}",
                f"{claim['ratio']:.2f}",
                f"{claim['worst']:.2f}",
                f"{claim['ours']:,}",
                f"{claim['peer']:,}",
                claim["unit"],
                "holds" if claim["holds"] else "MISSED",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        f"  {row[0]:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:6], widths[1:6], strict=True))
        + f"  {row[6]:<{widths[6]}}  {row[7]}"
        for row in rows
    ]
    lines += [f"  {name}.py: {SAID[status]}" for name, status in statuses.items() if status > 1]
    return "\n".join(lines)


def so_far(claims: Sequence[Claim], start: float) -> str:
    """Elapsed time and verdicts."""
    minutes, seconds = divmod(round(time.monotonic() - start), 60)
    missed = [claim["claim"] for claim in claims if not claim["holds"]]
    verdict = f"{len(claims) - len(missed)} claims hold, {len(missed)} missed {' '.join(missed)}".rstrip()
    return f"{minutes}:{seconds:02} elapsed; {verdict}"


def run_all(names: Sequence[str], words: Sequence[str]) -> tuple[dict[str, int], list[Claim]]:
    """Run scripts one after another; Ctrl-C ends the one that runs, and the rest is not begun."""
    claims: list[Claim] = []
    statuses: dict[str, int] = {}
    start = time.monotonic()
    for number, name in enumerate(names, 1):
        say(f"\n=== {number} of {len(names)}: {name} ({so_far(claims, start)})")
        try:
            statuses[name], found = run(name, words)
        except KeyboardInterrupt:
            statuses[name] = FAILED
            break
        claims += found
        say(f"=== {name}: {SAID[statuses[name]]}")
    say(f"\n=== {len(statuses)} of {len(names)} scripts ({so_far(claims, start)})")
    return statuses, claims


def main() -> int:
    """Parse the options, run the scripts, print the table; the worst status counts."""
    end_on_sigterm()
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--only",
        action="append",
        choices=SCRIPTS,
        metavar="NAME",
        help=f"of {', '.join(SCRIPTS)}; again for more",
    )
    options.add_argument("--pairs", type=int, help="rounds of each side (default: each script's own)")
    options.add_argument(
        "--cpus", type=int, default=CPUS, help="CPUs that everything shares (default %(default)s)"
    )
    options.add_argument("--json", action="store_true", help="one JSON object per claim to standard output")
    given = options.parse_args()
    words = ["--cpus", str(given.cpus)]
    if given.pairs is not None:
        words += ["--pairs", str(given.pairs)]
    names = [name for name in SCRIPTS if name in (given.only or SCRIPTS)]
    statuses, claims = run_all(names, words)
    say(summary(claims, statuses))
    if given.json:
        for claim in claims:
            sys.stdout.write(json.dumps(claim) + "\n")
    return max(statuses.values(), default=0)


if __name__ == "__main__":
    sys.exit(main())
