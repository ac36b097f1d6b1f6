"""The glossary is short, and a word names things only in the rooms that it lists.

Source: docs/glossary.md.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "quire"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/glossary.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| word |", "| --- |"))
]
NAMED = [re.fullmatch(r"`(\w+)`: ([a-z, ]+)", name).groups() for _, _, name, _ in ROWS if name]
WORDS_MAX = 45


def snake(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def names_by_room():
    found = {}
    for path in SRC.rglob("*.py"):
        parts = path.relative_to(SRC).with_suffix("").parts
        if "_pb2" not in path.name:
            defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, defined)]
            found.setdefault(parts[0], set()).update(parts, (snake(node.name) for node in nodes))
    return found


def test_there_are_few_words_and_each_has_one_meaning():
    words = [row[0] for row in ROWS]
    assert len(words) <= WORDS_MAX
    assert len(set(words)) == len(words)
    assert [word for word, meaning, _, _ in ROWS if not meaning] == []


@pytest.fixture(scope="module")
def names():
    return names_by_room()


@pytest.mark.parametrize(("word", "rooms"), NAMED, ids=[word for word, _ in NAMED])
def test_a_word_names_things_in_its_rooms_only(word, rooms, names):
    has = re.compile(rf"(?:^|_){word}")
    assert sorted(room for room, some in names.items() if any(map(has.search, some))) == rooms.split(", ")
