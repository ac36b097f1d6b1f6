"""docs/testing-coverage.md: every machine and every format has tests, and the page names them all."""

import re
from pathlib import Path

import checked_where
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/testing-coverage.md").read_text()


@pytest.fixture(scope="module")
def machines():
    return checked_where.machines()


@pytest.fixture(scope="module")
def formats():
    return checked_where.formats()


def region(kind):
    """The rows of a generated region."""
    found = re.search(rf"<!-- generated: checked {kind} -->\n(.*?)<!-- end -->", PAGE, re.S)
    return [line.split(" | ") for line in found[1].splitlines()[2:]]


def test_a_machine_or_a_format_has_tests(machines, formats):
    assert [checked.name for checked in (*machines, *formats) if not checked.tests] == []


def test_the_machines_that_decide_are_run_by_the_explorer(machines):
    """A sink's commit and audits have worlds of their own in `tests/support`; the others are tested alone."""
    alone = {
        "AuditMachine",
        "CommitMachine",
        "FlushMachine",
        "RewriteMachine",
    }
    assert {each.name for each in machines if not each.proven_by} == alone


@pytest.mark.parametrize("kind", ["machines", "formats"])
def test_the_page_names_every_one(request, kind):
    expected = [each.name for each in request.getfixturevalue(kind)]
    assert [row[0].strip("| `") for row in region(kind)] == expected, "run 'make docs'"


def test_a_class_that_no_test_imports_has_none(machines):
    assert checked_where.proof_rooms("quire.core.ledger.writer.NoMachine") == ()
    rows = {each.name: each.tests for each in machines}
    assert "unit/core/test_flush.py" in rows["FlushMachine"]
    assert "golden/test_writer_golden.py" in rows["WriterMachine"]
    assert "unit/core/test_flush.py" not in rows["WriterMachine"]
