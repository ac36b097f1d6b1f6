"""Whose directory it is, and when a bookie's identity lease is pending; `tests/check` explores both in a world."""

from __future__ import annotations

import pytest

from quire.core.bookie.boot import BootState, Claim, Marker, claim, next_boot, older_directory
from quire.core.bookie.identity_lease import IdentityLeaseMachine

OWN, COPY = Marker(11, 1_000), Marker(12, 2_000)
STORED = BootState(7, 5_000, OWN, owner=1)


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (BootState(7, 5_000, OWN), None),
        (BootState(7, 9_000, OWN), None),
        (BootState(8, 9_000, OWN), None),
        (BootState(6, 9_000, OWN), "the directory has boot 6, and the cluster has recorded boot 7"),
        (BootState(0, 9_000, OWN), "has boot 0"),
        (BootState(7, 4_999, OWN), "last LSN is 4999, and the cluster has recorded LSN 5000"),
        (BootState(7, 9_000, COPY), "marker file has inode 12"),
        (BootState(7, 5_000, COPY, clean=True), "marker file has inode 12"),
    ],
)
def test_what_is_older(own: BootState, why: str | None) -> None:
    found = older_directory(STORED, own)
    assert found is None if why is None else why in str(found)


def test_nothing_is_older_than_what_is_not_known() -> None:
    assert older_directory(None, BootState(0, 0, COPY)) is None


def test_a_directory_that_was_moved_after_a_clean_stop_is_whole() -> None:
    stored = STORED._replace(clean=True)
    assert older_directory(stored, BootState(7, 5_000, COPY, clean=True)) is None
    assert older_directory(stored, BootState(7, 5_000, COPY)) is not None
    assert older_directory(stored, BootState(7, 6_000, COPY, clean=True)) is not None
    assert older_directory(stored, BootState(8, 5_000, COPY, clean=True)) is not None


def test_a_start_counts_above_all_that_is_known() -> None:
    assert (next_boot(None, 0), next_boot(STORED, 3), next_boot(STORED, 9)) == (1, 8, 10)


@pytest.mark.parametrize(
    ("stored", "what"),
    [
        (None, Claim.BEHIND),
        (STORED, Claim.BEHIND),
        (BootState(8, 1, OWN, owner=5), Claim.OURS),
        (BootState(8, 1, OWN, owner=6), Claim.ANOTHER),
        (BootState(9, 1, OWN, owner=5), Claim.ANOTHER),
    ],
)
def test_whose_record_it_is(stored: BootState | None, what: Claim) -> None:
    assert claim(stored, BootState(8, 9_000, OWN, owner=5)) is what


def serving() -> IdentityLeaseMachine:
    machine = IdentityLeaseMachine(5_000, 100)
    assert machine.pending
    assert machine.confirmed(machine.round)
    return machine


def test_a_pause_makes_it_hold_until_a_confirmation_that_began_after_it() -> None:
    machine = serving()
    assert not machine.look(5_100)
    begun = machine.round
    assert machine.look(10_101)
    assert "did not run for 5001 ms" in machine.why
    assert not machine.confirmed(begun)
    assert machine.pending
    assert machine.confirmed(machine.round)
    assert not machine.look(10_102)


def test_a_registration_that_is_gone_makes_it_hold() -> None:
    machine = serving()
    machine.registration_lost()
    begun = machine.round
    machine.registration_lost()
    assert not machine.confirmed(begun), "it was gone once more since"
    assert machine.confirmed(machine.round)


def test_who_was_replaced_holds_for_ever() -> None:
    machine = serving()
    machine.replaced_by("boot 9 serves")
    assert not machine.confirmed(machine.round)
    assert machine.look(101)
    assert machine.replaced == "boot 9 serves"
