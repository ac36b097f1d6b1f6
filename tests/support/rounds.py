"""How many rounds a test runs: few in `make test`, all of them in `make full`; and where the figures of these go."""

import json
import os
import platform
import subprocess
import time
from pathlib import Path

import quire

FULL = os.environ.get("QUIRE_FULL") == "1"
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "proof"


def rounds(reduced, full):
    """The number for this run; QUIRE_ROUNDS says another."""
    return int(os.environ.get("QUIRE_ROUNDS", full if FULL else reduced))


def _commit():
    """What is tested, with a plus if it is not as it was committed."""
    asked = ["git", "-C", str(RESULTS), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


COMMIT = _commit() if FULL else ""
"""Asked when the run begins: others may commit while it lasts."""


def this_test():
    """The test that runs, as pytest names it."""
    return os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0]


def keep_figures(name, figures, *, seed, rows=None, test=None):
    """Print the figures of a test, and keep them in docs/proof when this is the proof."""
    print(json.dumps({"figures of": name, **figures}))
    if not FULL:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    facts = {
        "proof": name,
        "seed": seed,
        "figures": figures,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "quire": quire.__version__,
        "commit": COMMIT,
        "command": f"make full ARGS='{test or this_test()}'",
    }
    if rows is not None:
        facts["rows"] = rows
    (RESULTS / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
