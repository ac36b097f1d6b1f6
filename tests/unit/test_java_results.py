"""The tables of docs/moving.md are made of results: no cell is empty, and every step of the matrix passed."""

import re

import java_results


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.strip().splitlines()[2:]]


def test_every_step_between_us_and_every_version_passed() -> None:
    rows = cells(java_results.versions())
    assert tuple(row[0] for row in rows) == java_results.VERSIONS
    for version, *counts in rows:
        assert len(counts) == 4, version
        for count in counts:
            passed = re.fullmatch(r"([1-9][0-9]*) of \1", count)
            assert passed, (version, count)


def test_every_load_of_every_setting_has_a_cell() -> None:
    for setting, *loads in cells(java_results.busy()):
        assert len(loads) == 6, setting
        assert all(load == "not run" or re.match(r"[1-9][0-9]*: ", load) for load in loads), setting
