"""A public class name stands once in `src`: who reads it need not look which module it comes from."""

import ast
from collections import defaultdict
from pathlib import Path

SRC = Path(__file__).resolve().parents[2] / "src"


def test_a_class_name_stands_once():
    places = defaultdict(list)
    for path in sorted(SRC.rglob("*.py")):
        if "_pb2" not in path.name:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(SRC)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
