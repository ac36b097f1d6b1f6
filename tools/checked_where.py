"""What is checked where: for each machine of core and each format, the tests that use its code (docs/testing-coverage.md).

A test belongs to a machine when it, or a helper in `tests/support` that it uses, imports the class; to a format when it
stands in a folder that checks bytes and imports a module of the codec that the format's page names.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
TESTS: Final = ROOT / "tests"
PROOF_ROOMS: Final = frozenset({"crash", "explorer", "replay", "sim"})
"""Folders whose programs run the machines to find out whether they are right."""

BYTES: Final = (
    "conformance/",
    "history/",
    "hostile/",
    "properties/",
    "unit/metadata/",
    "unit/storage/",
    "unit/wire/",
    "vectors/",
)
"""Folders of tests that check bytes; elsewhere codecs are used, not checked."""

CODE: Final = re.compile(
    r"`(?:src/)?((?:quire(?:_testing)?/)?(?:wire|storage|metadata|history)/[a-z_/0-9]+)\.(?:py|proto)`"
)


@dataclass(frozen=True, slots=True)
class Checked:
    """One row: a machine or a format, and who uses its code.

    Attributes:
        name: the machine's class, or the title of the format's page.
        code: files below src/quire.
        proven_by: rooms that run it exhaustively, by chance or on schedules.
        tests: test files below tests.
    """

    name: str
    code: tuple[str, ...]
    proven_by: tuple[str, ...]
    tests: tuple[str, ...]


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Every module that a file imports, and every name that it imports from one, as `module.name`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return frozenset(found)


@cache
def imports_with_support(path: Path) -> frozenset[str]:
    """What a test imports, and what the helpers of `tests/support` import that it uses, and theirs."""
    found = set(imports_of(path))
    waiting = [name for name in found if name.startswith("support")]
    seen = set(waiting)
    while waiting:
        helper = TESTS / (waiting.pop().replace(".", "/") + ".py")
        if not helper.exists():
            continue
        more = imports_of(helper)
        found |= more
        waiting += [name for name in more if name.startswith("support") and name not in seen]
        seen |= set(waiting)
    return frozenset(found)


@cache
def test_files() -> tuple[Path, ...]:
    """Every test file."""
    return tuple(sorted(TESTS.rglob("test_*.py")))


def machines() -> list[Checked]:
    """Every class of core whose name ends in `Machine`."""
    found = []
    for path in sorted((SOURCE / "quire" / "core").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Machine"):
                module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
                wanted = f"{module}.{node.name}"
                found.append(
                    Checked(
                        node.name,
                        (f"core/{path.relative_to(SOURCE / 'quire' / 'core')}",),
                        proof_rooms(wanted),
                        tuple(
                            str(test.relative_to(TESTS))
                            for test in test_files()
                            if wanted in imports_with_support(test)
                        ),
                    )
                )
    return found


def proof_rooms(wanted: str) -> tuple[str, ...]:
    """The proof rooms in which a file imports a class."""
    rooms = {
        room
        for path in sorted(SOURCE.rglob("*.py"))
        for room in PROOF_ROOMS & set(path.relative_to(SOURCE).parts)
        if wanted in imports_of(path)
    }
    return tuple(sorted(rooms))


def formats() -> list[Checked]:
    """Every format that has a page and names its code."""
    found = []
    for page in sorted((ROOT / "docs" / "formats").glob("*.md")):
        text = page.read_text()
        code = tuple(sorted(set(CODE.findall(text))))
        if page.name in {"README.md", "fields.md"} or not code:
            continue
        paths = {each if each.startswith("quire") else f"quire/{each}" for each in code}
        modules = {path.replace("/", ".") for path in paths}
        # The room of histories exports what its modules define.
        modules |= {"quire_testing.history"} & {module.rpartition(".")[0] for module in modules}
        tests = tuple(
            inside
            for test in test_files()
            if (inside := str(test.relative_to(TESTS))).startswith(BYTES) and modules & imports_of(test)
        )
        title = text.splitlines()[0].removeprefix("# ")
        found.append(
            Checked(f"[{title}](formats/{page.name})", tuple(f"{each}.py" for each in code), (), tests)
        )
    return found


def by_ring(tests: tuple[str, ...]) -> str:
    """The files of each ring: `golden`: two files, ..."""
    rings: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        ring, _, rest = test.partition("/")
        rings[ring].append(rest.rpartition("/")[2].removeprefix("test_").removesuffix(".py"))
    return "; ".join(f"**{ring}**: {', '.join(names)}" for ring, names in sorted(rings.items()))


def table(kind: str) -> str:
    """The rows of `machines` or of `formats` in Markdown."""
    if kind == "machines":
        rows = ["| machine | code | run by | tests |", "| --- | --- | --- | --- |"]
        rows += [
            f"| `{each.name}` | `{each.code[0]}` | {', '.join(each.proven_by)} | {by_ring(each.tests)} |"
            for each in machines()
        ]
    else:
        rows = ["| format | tests |", "| --- | --- |"]
        rows += [f"| {each.name} | {by_ring(each.tests)} |" for each in formats()]
    return "\n".join(rows) + "\n"
