"""How far a message travels in the code, and how large the code is: no figure may rise (docs/sizes.md)."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import code_size
import limits
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def walks():
    """What was recorded in a process of its own: the tracer sees only threads that begin after it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/trace_paths.py"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def now(walks):
    return limits.figures(code_size.count(), {way: walk["counts"] for way, walk in walks.items()})


def test_no_figure_rises(now):
    assert limits.risen(now, limits.limits()) == [], (
        "`python tools/limits.py --lower` writes lower limits, never higher ones"
    )


def test_every_limit_is_measured(now):
    assert limits.limits().keys() == now.keys()


def test_a_figure_above_its_limit_is_named_with_what_to_do():
    (problem,) = limits.risen({"append: files": 38}, {"append: files": 37})
    assert problem.startswith("append: files rose from 37 to 38: ")
    assert "trace_paths.py 'append'" in problem


def test_limits_are_only_lowered():
    assert limits.lower({"a": 3, "b": 9, "c": 4}, {"a": 5, "b": 7}) == {"a": 3, "b": 7, "c": 4}


@pytest.mark.parametrize("way", ["append", "read", "log append"])
def test_a_message_passes_both_ends(walks, way):
    """The recording is of the programs that ship: client, connection, bookie, machine and disk."""
    passed = {Path(file).parent.name for file in walks[way]["files"]}
    assert passed >= {"client", "net", "wire", "bookie", "core", "storage"}


def test_a_recovery_changes_the_metadata(walks):
    assert {Path(file).parent.name for file in walks["recovery"]["files"]} >= {"client", "bookie", "metadata"}


# --- what the counter counts -----------------------------------------------------------------------------------------

EXAMPLE = '''"""A docstring."""

import os  # a comment beside code

# a comment alone


class Example:
    """Another."""

    limit: int = 3
    """A docstring of a field."""

    def text(self):
        self.name = os.name
        return """two
lines"""
'''


def test_lines_without_comments_docstrings_and_blanks():
    assert code_size.code_lines(EXAMPLE, ast.parse(EXAMPLE)) == 7


def test_fields_are_slots_annotations_and_what_methods_assign(tmp_path):
    (tmp_path / "one.py").write_text(EXAMPLE)
    (tmp_path / "two.py").write_text(
        "from one import Example\n\nclass More(Example):\n    __slots__ = ('a', 'limit')\n"
        "\n    def set(self):\n        self.b: int = 1\n"
    )
    size = code_size.count(tmp_path)
    assert size.fields(("one", "Example")) == {"limit", "name"}
    assert size.fields(("two", "More")) == {"a", "b", "limit", "name"}


def test_a_name_in_two_modules_is_found(tmp_path):
    for module in ("one", "two"):
        (tmp_path / f"{module}.py").write_text("class Same: ...\nclass _Private: ...\n")
    (tmp_path / "three.py").write_text("class Other: ...\n")
    assert code_size.count(tmp_path).repeated_names() == {"Same": ["one", "two"]}
