"""How long a writer pauses between two looks for bookies that are away."""

from __future__ import annotations

import pytest

from quire.core.ledger.writer_state import WriterLimits
from quire.core.ledger.writer_waits import GUARANTEED_PAUSE_MS, WriterWaits


@pytest.mark.parametrize(
    ("guaranteed", "longest", "pauses"),
    [
        (False, 5000, [200, 400, 800, 1600, 3200, 5000, 5000]),
        (True, 5000, [200, 400, GUARANTEED_PAUSE_MS, GUARANTEED_PAUSE_MS]),
        (True, 300, [200, 300, 300]),
    ],
)
def test_pauses_grow_and_stay_short_where_appends_wait_for_a_guarantee(guaranteed, longest, pauses):
    waits = WriterWaits(WriterLimits(retry_ms_min=200, retry_ms_max=longest), 200)
    found = []
    for now_ms in range(len(pauses)):
        assert waits.look_later(now_ms, guaranteed=guaranteed)
        found.append(waits.look_at_ms - now_ms)
        waits.look_at_ms = None
    assert found == pauses
