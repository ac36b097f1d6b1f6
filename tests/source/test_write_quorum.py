"""Each test cites the sentence on the guaranteed write quorum that it checks.

Source: Vanlightly's unbounded ledgers.
"""

from __future__ import annotations

from quire_testing.explorer.check import check
from quire_testing.explorer.configuration import Configuration


def test_all_entries_of_a_closed_ledger_reach_write_quorum() -> None:
    """ "all entries in closed ledgers reached Write Quorum (WQ)": closed by the writer, and by a recovery."""
    for configuration in (
        Configuration(2, 2, 2, 1, recoverers=0, closes=True, timeouts=1, guarantee=True),
        Configuration(2, 2, 2, 1, guarantee=True),
    ):
        done = check(configuration, invariants=["Q2"])
        assert done.result.complete
        assert done.result.violation is None, done.text


def test_all_entries_of_all_but_the_last_fragment_reach_write_quorum() -> None:
    """ "all entries in all but the last fragment in open ledgers reach write quorum" """
    configuration = Configuration(3, 2, 2, 1, recoverers=0, timeouts=1, guarantee=True)
    done = check(configuration, invariants=["Q1"], count_kinds=True)
    assert done.result.complete
    assert done.result.violation is None, done.text
    assert done.result.kinds["writer timeout"]
