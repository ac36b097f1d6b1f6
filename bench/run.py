"""Every benchmark, one after another; the results are saved under bench/results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = ("append", "latency")


def main() -> int:
    """Run the scripts with the options given; the worst exit status counts."""
    here = Path(__file__).resolve().parent
    codes = [
        subprocess.run(
            [sys.executable, str(here / f"{name}.py"), "--save", *sys.argv[1:]], check=False
        ).returncode
        for name in SCRIPTS
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
