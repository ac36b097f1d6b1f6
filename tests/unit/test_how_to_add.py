"""docs/how-to-add.md names the files that an addition touches; each example must still be in exactly these."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/how-to-add.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| .+ \|$", re.M)
WANTED = ["A request", "A state machine", "A metadata store", "A fault", "A mutant", "A Spark job"]
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted((ROOT / "src").rglob("*.py"))
    if not path.name.endswith("_pb2.py")
}


def sections():
    return dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", TEXT, re.M))


def stands_in(example, text):
    return re.search(rf"(?<![\w-]){re.escape(example)}(?![\w-])", text) is not None


def left_out(section, sources):
    """Files of src that have the section's example and no row."""
    (example,) = re.findall(r"Example:\s`([^`]+)`", section)
    listed = {path for path, _ in ROW.findall(section)}
    return [path for path, text in sources.items() if stands_in(example, text) and path not in listed]


def test_the_page_has_a_section_for_each():
    assert list(sections()) == WANTED


def test_a_file_has_what_the_page_says():
    for path, marker in (row for section in sections().values() for row in ROW.findall(section)):
        assert (ROOT / path).is_file(), f"{path} is gone; docs/how-to-add.md names it"
        assert marker in (ROOT / path).read_text(), f"{path} has no {marker!r}"


@pytest.mark.parametrize("title", WANTED)
def test_no_file_of_an_example_is_left_out(title):
    assert left_out(sections()[title], SOURCES) == []


def test_a_file_that_is_left_out_is_found():
    section = "Example: `Thing`.\n\n| `src/a.py` | `class Thing` | it |\n"
    assert left_out(section, {"src/a.py": "class Thing", "src/b.py": "Thing()", "src/c.py": "Things"}) == [
        "src/b.py"
    ]
