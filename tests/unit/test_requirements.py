"""The requirement files: pinned, hashed, without addresses, and the same list as pyproject.toml's."""

import re
import tomllib
from pathlib import Path

import pytest

from quire.distribution import MODULES, NAME

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKED = ("bootstrap.txt", "dev.txt", "runtime.txt", "spark42.txt", "proto.txt")
PINNED = re.compile(r"^([a-z0-9-]+)==([^ ]+)", re.MULTILINE)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name):
    return dict(PINNED.findall((REQUIREMENTS / name).read_text()))


def without_marker(requirement):
    return requirement.partition(";")[0].strip()


TABLE_FORMATS = {"delta", "iceberg"}
"""Extras that only their tests install: the demo does without."""


def extras(names):
    found = project()["optional-dependencies"]
    lines = [line for name in sorted(names & found.keys()) for line in found[name]]
    return [line for line in lines if not line.startswith(f"{NAME}[")]


def all_dependencies():
    return project()["dependencies"] + extras(project()["optional-dependencies"].keys())


def test_runtime_in_lists_what_pyproject_lists():
    lines = (REQUIREMENTS / "runtime.in").read_text().splitlines()
    listed = {line.partition("#")[0].strip() for line in lines} - {""}
    declared = project()["dependencies"] + extras(project()["optional-dependencies"].keys() - TABLE_FORMATS)
    assert listed == {without_marker(requirement) for requirement in declared}


def test_all_is_every_other_extra():
    """And the extras that the program asks for are among them."""
    (everything,) = project()["optional-dependencies"]["all"]
    named = set(everything.removeprefix(f"{NAME}[").removesuffix("]").split(","))
    there = project()["optional-dependencies"].keys() - {"all"}
    assert {*named, "spark"} == there
    assert {str(extra) for extra in MODULES} <= there


def test_dev_in_lists_the_extras_that_only_tests_install():
    lines = (REQUIREMENTS / "dev.in").read_text().splitlines()
    listed = {line.partition("#")[0].strip() for line in lines}
    assert set(extras(TABLE_FORMATS)) <= listed


def test_every_dependency_of_pyproject_has_a_reason():
    text = (ROOT / "pyproject.toml").read_text()
    assert len(all_dependencies()) > 10
    for requirement in all_dependencies():
        line = next(line for line in text.splitlines() if line.strip().startswith(f'"{requirement}"'))
        assert re.search(r"#\s+\S+ \S+", line), f"say why {requirement} is needed"


@pytest.mark.parametrize("path", sorted(REQUIREMENTS.iterdir()), ids=lambda path: path.name)
def test_no_addresses(path):
    """They record names, versions and hashes, so they serve behind any mirror."""
    text = path.read_text()
    assert "://" not in text
    assert not re.search(r"--(index|extra-index|find-links|trusted-host)", text)


@pytest.mark.parametrize("name", LOCKED)
def test_every_pin_has_a_hash(name):
    blocks = re.split(r"\n(?=[a-z0-9])", (REQUIREMENTS / name).read_text())
    for block in blocks:
        if PINNED.match(block):
            assert "--hash=sha256:" in block, block.splitlines()[0]


@pytest.mark.parametrize("name", ["bootstrap.txt", "runtime.txt"])
def test_one_version_of_each_package(name):
    dev = pins("dev.txt")
    for package, version in pins(name).items():
        assert dev.get(package, version) == version, f"{package} differs from dev.txt: run 'make lock'"
