"""Make the golden files of revision 9e5fe3a anew: `tools/golden_files.py [FOLDER]`.

They hold what programs of that revision wrote: bookies' directories, frames, a cluster with its metadata. The code that
makes them runs in processes of its own, with the sources of that revision (`git archive`, kept under `out/`). What lies in
`tests/vectors/golden_9e5fe3a` is what later programs must read for ever: there is no reason to make it anew, except to add
something that was not in it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

MAKERS = ("frames", "directories", "cluster")


def main() -> int:
    """Run each maker with the old code, in an empty folder."""
    golden, programs = (import_module(f"support.{name}") for name in ("golden", "old_programs"))
    target = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else golden.FOLDER
    old = programs.old_program()
    if isinstance(old, str):
        sys.stderr.write(f"{old}\n")
        return 1
    target.mkdir(parents=True, exist_ok=True)
    for name in MAKERS:
        maker = ROOT / "tests" / "upgrade" / "makers" / f"{name}.py"
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(  # noqa: S603 - our own maker
                [sys.executable, str(maker), str(target)], cwd=folder, env=old.environment, check=True
            )
        sys.stdout.write(f"{name} made\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
