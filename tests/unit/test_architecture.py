"""ARCHITECTURE.md says where an entry goes; the code must agree. The import contracts run here as well."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "quire"
PACKAGES = (SOURCE, ROOT / "src" / "quire_testing")
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
ROW = re.compile(r"^\| (\d) \| `([a-z_/0-9.]+)` \| (.+?) \| (.+) \|$")


def walk(title):
    """The rows of a walk table: step, file, names in it."""
    section = TEXT.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]
    rows = [match for line in section.splitlines() if (match := ROW.match(line))]
    return [(int(row[1]), row[2], re.findall(r"`([A-Za-z_.0-9]+)`", row[3])) for row in rows]


OUT = walk("Out")
BACK = walk("Back")


def defined(path):
    """Functions, classes and their methods of a file, as `name` and `Class.name`."""
    names = set()
    for node in ast.parse((SOURCE / path).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def test_eight_rooms_out_and_four_back():
    assert [step for step, _, _ in OUT] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [step for step, _, _ in BACK] == [1, 2, 3, 4]


def test_each_file_is_passed_once_each_way():
    for way in (OUT, BACK):
        files = [path for _, path, _ in way]
        assert len(files) == len(set(files))


@pytest.mark.parametrize(("step", "path", "names"), OUT + BACK)
def test_every_name_of_the_walk_exists(step, path, names):
    assert names, f"step {step} names no function"
    assert (SOURCE / path).is_file(), path
    missing = [name for name in names if name not in defined(path)]
    assert missing == [], f"not in {path}"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_room_has_a_line_in_the_map(package):
    rooms = {path.name for path in package.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    rooms |= {path.stem for path in package.glob("*.py") if path.stem != "__init__"}
    missing = [room for room in sorted(rooms) if f"`{room}`" not in TEXT]
    assert missing == []


def test_the_import_contracts_hold():
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
