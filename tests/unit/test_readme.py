"""README is short, and what it leads to is there in a clone and in the source archive; the index shows it as text alone."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
TARGETS = sorted({target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", README)})


def test_it_has_at_most_160_lines():
    assert len(README.splitlines()) <= 160


def test_its_links_are_files_of_the_project():
    assert [target for target in TARGETS if not (ROOT / target).is_file()] == []


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """What the source archive has, built from a copy: building leaves files behind."""
    copy = tmp_path_factory.mktemp("sdist") / "project"
    tracked = subprocess.run(
        [
            "git",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "--",
            "*.md",
            "*.in",
            "*.toml",
            "LICENSE",
            "docs",
            "src",
        ],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-c", "import setuptools.build_meta as b; b.build_sdist('..')"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = copy.parent.glob("*.tar.gz")
    with tarfile.open(path) as found:
        return {name.partition("/")[2] for name in found.getnames()}


def test_the_source_archive_has_what_it_leads_to(archive):
    assert [target for target in TARGETS if target not in archive] == []
