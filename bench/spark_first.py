"""Claim S13: from `pip install` to the first `show()`, in at most 90 seconds and 10 lines.

Every round makes a virtual environment and installs the project and what its Spark part needs into it, with nothing in
pip's cache; most of that is Spark's own archive, which pip fetches and builds. Then what the lines below say is done, one
process for each block: a cluster, a log, two records, a session, a table. What is shown is looked at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import harness
from accounting import load_average
from harness import Claim, Comparison, say
from peers import OUT, ROOT

SECONDS = 90.0
LINES = 10.0
INSTALL = "pip install '.[spark-local]'"
CLUSTER = """\
export QUIRE_CLUSTER=sqlite:quire-data/metadata.db
quire up --dir quire-data &
"""
FILL = """\
quire log create greetings
printf 'hello\\nworld\\n' | quire log append greetings
"""
SHOW = """\
import quire.spark
spark = quire.spark.session()
spark.read.format("quire").load("greetings").show()
"""
FIRST = Claim("S13", f"from pip install to the first show(), against {SECONDS:.0f} s (aim 30)", "s", 1, False)
TYPED = Claim("S13-lines", f"the lines it takes, against {LINES:.0f} (aim 5)", "lines", 1, False)


def round_of(directory: Path) -> dict[str, float]:
    """The seconds of each step, in an environment of its own."""
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory / "venv", with_pip=True)
    programs = directory / "venv" / "bin"
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))
    }
    env |= {"PATH": f"{programs}{os.pathsep}{env['PATH']}", "QUIRE_CLUSTER": "sqlite:quire-data/metadata.db"}
    took: dict[str, float] = {}

    def run(step: str, *command: str) -> str:
        begun = time.perf_counter()
        done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False)
        took[step] = time.perf_counter() - begun
        if done.returncode:
            raise RuntimeError(f"{step} failed: {done.stderr.strip()[-2000:]}")
        return done.stdout

    run("pip install", str(programs / "pip"), "install", "--no-cache-dir", f"{ROOT}[spark-local]")
    begun = time.perf_counter()
    with subprocess.Popen(
        [str(programs / "quire"), "up", "--dir", "quire-data"],
        cwd=directory,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    ) as cluster:
        try:
            assert cluster.stdout is not None
            if not cluster.stdout.readline().startswith("Cluster"):
                raise RuntimeError("the cluster did not start")
            took["quire up"] = time.perf_counter() - begun
            run("quire log", "bash", "-euc", FILL)
            shown = run("session and show()", str(programs / "python"), "-c", SHOW)
        finally:
            cluster.terminate()
    if "greetings" not in shown:
        raise RuntimeError(f"this was shown: {shown}")
    return took


def measure(pairs: int) -> list[Comparison]:
    """Both claims."""
    lines = [INSTALL, *CLUSTER.splitlines(), *FILL.splitlines(), *SHOW.splitlines()]
    first, typed = (Comparison(claim, {"lines": lines}) for claim in (FIRST, TYPED))
    steps: list[dict[str, float]] = []
    for _ in range(pairs):
        load = load_average()
        steps.append(round_of(OUT / "spark-first"))
        say("  " + ", ".join(f"{step} {seconds:.1f} s" for step, seconds in steps[-1].items()))
        first.add(sum(steps[-1].values()), {"bar": SECONDS}, load)
        typed.add(len(lines), {"bar": LINES}, load)
    shutil.rmtree(OUT / "spark-first", ignore_errors=True)
    first.extra["s of the steps"] = {step: round(seconds, 1) for step, seconds in steps[first.middle].items()}
    return [first, typed]


def main() -> int:
    """Parse the options and run."""
    given = harness.parser(__doc__ or "", pairs=3).parse_args()
    return harness.main("spark_first", given, lambda: measure(given.pairs))


if __name__ == "__main__":
    sys.exit(main())
