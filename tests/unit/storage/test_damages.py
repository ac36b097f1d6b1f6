"""What was found damaged, until it is over."""

from __future__ import annotations

from quire.storage.damages import Damages
from quire.storage.segments.findings import Damage

WHOLE = Damage("1.seg", 4096, 7, 0, 9, "the body of the run does not verify")


def test_what_is_left_of_a_damage_may_have_been_found_by_itself() -> None:
    """A part of a run is put back, a read finds the other part, and the first find is cut to that."""
    found: list[Damage] = []
    damages = Damages([], 10)
    damages.on_found = found.append
    left = Damage("1.seg", 4096, 7, 5, 9, WHOLE.what)
    damages.found(left)
    damages.found(WHOLE)
    damages.put_back(7, 0, 4)
    assert damages.kept == [left]
    damages.file_freed("1.seg")
    assert damages.kept == []
    assert damages.ledgers() == []
    assert found == [left, WHOLE]
