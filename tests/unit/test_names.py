"""A name says one thing: who reads a class or a module by its name need not look which one is meant."""

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"

TWICE_IN_A_ROOM = {
    # What each subject has.
    "core": {"effects", "machine", "rules"},
    # Parts that the stores have alike.
    "metadata": {"ids", "keys", "options", "registrations", "store", "watches"},
}
"""Names that several modules of one room have on purpose."""


def sources():
    return [path for path in sorted(SRC.rglob("*.py")) if "_pb2" not in path.name]


def test_a_class_name_stands_once():
    places = defaultdict(list)
    for path in sources():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(SRC)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_module_name_stands_once_in_a_room():
    places = defaultdict(list)
    for path in sources():
        package, *folders, name = path.relative_to(SRC).with_suffix("").parts
        if not name.startswith("__"):
            places[package, folders[0] if folders else "", name].append(str(path.relative_to(SRC)))
    twice = {
        (room, name): where
        for (_, room, name), where in places.items()
        if len(where) > 1 and name not in TWICE_IN_A_ROOM.get(room, ())
    }
    assert twice == {}
