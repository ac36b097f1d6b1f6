"""docs/formats/history.md says what the code does: its tables, its example, its violations."""

from __future__ import annotations

import re
from pathlib import Path

from history.page import rows
from quire_testing.history import INVARIANTS, HistoryFile, judge
from quire_testing.history.kinds import NOTES, OPERATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats" / "history.md"
TEXT = PAGE.read_text()


def block(kind):
    return re.search(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)[1]


def read(text):
    return judge(HistoryFile(text.encode().splitlines(keepends=True)))


def test_every_kind_has_its_row():
    table = [line for line in TEXT.splitlines() if line.startswith("| `")]
    wanted = [*rows(OPERATIONS), *rows(NOTES)]
    assert [row for row in wanted if row not in table] == []
    assert [row for row in table[-len(wanted) :] if row not in wanted] == []


def test_every_invariant_has_its_row():
    for number, name in INVARIANTS.items():
        assert f"\n| {number} {name} |" in TEXT


def test_the_example_holds():
    verdict = read(block("json"))
    assert verdict.holds
    assert verdict.events == 10


def test_the_spoiled_example_says_what_the_page_says():
    wanted = re.search(r'If its last line said `("hashes".*?)`', TEXT)[1]
    spoiled = re.sub(r'"hashes":"\w+","missing":\[\[3,3\]\]', lambda _: wanted, block("json"))
    assert "".join(f"{violation}\n" for violation in read(spoiled).violations) == block("text")
