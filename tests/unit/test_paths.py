"""How far a message travels in the code, and how large the code is: no figure may rise (docs/sizes.md)."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import code_size
import limits
import pytest

ROOT = Path(__file__).resolve().parents[2]


RECORDINGS = 3
"""On a loaded machine a recovery's answers may come in another order, and take another way; a longer way is always longer."""


def recorded():
    """What was recorded in a process of its own: the tracer sees only threads that begin after it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/trace_paths.py"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def figures_of(walks):
    return limits.figures(code_size.count(), {way: walk["counts"] for way, walk in walks.items()})


@pytest.fixture(scope="module")
def walks():
    return recorded()


@pytest.fixture(scope="module")
def now(walks):
    return figures_of(walks)


def test_no_figure_rises(now):
    for _ in range(RECORDINGS - 1):
        if limits.risen(now, limits.limits()):
            now = limits.lower(now, figures_of(recorded()))
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
    passed = {Path(file).parts[1] for file in walks[way]["files"]}
    assert passed >= {"client", "net", "wire", "bookie", "core", "storage"}


def test_a_recovery_changes_the_metadata(walks):
    assert {Path(file).parts[1] for file in walks["recovery"]["files"]} >= {"client", "bookie", "metadata"}


# --- the pages that follow an append ---------------------------------------------------------------------------------

STEP = re.compile(r"^\| (\d+) \| `([A-Za-z_.]+)` \| `([a-z_/0-9.]+)` \| (.+) \|$")
ROW = re.compile(r"^\| \d+ \| `([a-z_/0-9.]+)` \| (`[^|]+`) \| .+ \|$")
NAME = re.compile(r"`([A-Za-z_.0-9]+)`")


def journey_steps():
    """The table of docs/journey.md: step, message, file, functions."""
    lines = (ROOT / "docs/journey.md").read_text().splitlines()
    rows = [match for line in lines if (match := STEP.match(line))]
    return [(int(row[1]), row[2], row[3], NAME.findall(row[4])) for row in rows]


def architecture_rows():
    """The walk of ARCHITECTURE.md, out and back: file and the function that stands first."""
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    rows = [match for line in lines if (match := ROW.match(line))]
    return [(row[1], NAME.findall(row[2])[0]) for row in rows]


def not_reached_in_order(walk, wanted):
    """What of `file:function` an append does not reach, or does not reach for the first time in this order."""
    reached = {each: place for place, each in enumerate(walk["functions"])}
    missing = [each for each in wanted if f"quire/{each}" not in reached]
    found = [each for each in wanted if each not in missing]
    in_order = sorted(found, key=lambda each: reached[f"quire/{each}"])
    return missing + [one for one, other in zip(found, in_order, strict=True) if one != other]


def code_of(path, name):
    """The code of a method, as `Class.method`."""
    kind, _, method = name.partition(".")
    for node in ast.parse((ROOT / "src/quire" / path).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            return next(
                ast.unparse(inner)
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name == method
            )
    raise AssertionError(f"{path} has no {name}")


def test_the_journey_is_the_way_of_a_recorded_append(walks):
    steps = journey_steps()
    assert [step for step, *_ in steps] == list(range(1, 18))
    wanted = [f"{path}:{name}" for _, _, path, names in steps for name in names]
    assert not_reached_in_order(walks["append"], wanted) == []


@pytest.mark.parametrize(("step", "message", "path", "names"), journey_steps())
def test_the_code_of_a_step_names_its_message(step, message, path, names):
    assert any(re.search(rf"\b{re.escape(message)}\b", code_of(path, name)) for name in names), (
        f"step {step}: {path} {', '.join(names)} says nothing of {message}"
    )


def test_every_step_of_the_journey_is_told():
    text = (ROOT / "docs/journey.md").read_text()
    told = set()
    for first, last in re.findall(r"^\*\*(\d+)(?: (?:and|to) (\d+))?\. ", text, re.M):
        told |= set(range(int(first), int(last or first) + 1))
    assert told == {step for step, *_ in journey_steps()}


def test_the_walk_of_the_architecture_is_the_way_of_a_recorded_append(walks):
    wanted = [f"{path}:{name}" for path, name in architecture_rows()]
    assert len(wanted) == 12
    assert not_reached_in_order(walks["append"], wanted) == []


def test_a_step_that_moved_is_noticed(walks):
    wanted = [f"{path}:{name}" for path, name in architecture_rows()]
    wanted[2], wanted[3] = wanted[3], wanted[2]
    assert not_reached_in_order(walks["append"], wanted) == wanted[2:4]
    assert not_reached_in_order(walks["append"], ["core/ledger/writer.py:WriterMachine.recover"]) != []


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
