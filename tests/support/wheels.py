"""Wheels of this clone's two distributions."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def built(project, into):
    """The wheel of a project directory, built from a copy: building leaves files behind."""
    copy = into / "project"
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    if project == ROOT:
        copy.mkdir(parents=True)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, copy)
        shutil.copytree(ROOT / "src", copy / "src", ignore=unwanted)
    else:
        shutil.copytree(project, copy, ignore=unwanted)
    command = [sys.executable, "-c", "import setuptools.build_meta as b; b.build_wheel('..')"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = into.glob("*.whl")
    return wheel
