"""One sync fails, at every position: nothing is acknowledged after it, and a restart has all that was before."""

from __future__ import annotations

import pytest

from quire.core.errors import StorageError
from quire.env.interfaces import Files
from quire.storage.ledger_storage import LedgerStorage
from quire_testing.crash.bookie_run import BookieRun
from quire_testing.crash.campaign import Campaign
from quire_testing.crash.promises import BookieMilestone, MilestoneKind
from quire_testing.crash.workloads import ROLL_BYTES
from support.crash_faults import FailingFiles
from support.rounds import rounds

pytestmark = pytest.mark.long
POSITIONS = 50
ANSWERS = {MilestoneKind.ADDED, MilestoneKind.FENCED, MilestoneKind.DELETED, MilestoneKind.LAC}


class FailingRun(BookieRun):
    """A bookie that starts when everything is ready for its failure."""

    storage: LedgerStorage | None = None  # type: ignore[assignment]
    failed_at = -1

    def start(self) -> None:
        """Not yet."""

    def work(self, failing: FailingFiles) -> None:
        def failed() -> None:
            self.failed_at = len(self.files.recording.operations)

        failing.failed = failed
        super().start()
        work(self)


def work(run: BookieRun) -> None:
    """Everything that syncs something: it opens, rolls, seals, makes spares, reclaims, recycles, while adds wait."""
    run.fence(9)
    for ledger_id in (1, 2, 3):
        for entry_id in range(10):
            run.add(ledger_id, entry_id, size=ROLL_BYTES, lac=entry_id - 1)
            run.flush()
            run.add(8, 10 * ledger_id + entry_id, size=200)
            if entry_id % 3 == 2:
                run.settle()
        run.settle()
        run.delete(ledger_id)
        run.settle()
        run.reclaim()
        run.settle()


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("position", range(1, POSITIONS + 1))
def test_a_failed_sync_is_final(position: int, direct: bool) -> None:
    failing: list[FailingFiles] = []

    def below(files: Files) -> FailingFiles:
        failing.append(FailingFiles(files, position))
        return failing[0]

    run = FailingRun(direct=direct, below=below)
    try:
        run.work(failing[0])
    except (StorageError, OSError):
        assert run.storage is None or run.storage.failure is not None
    assert failing[0].left <= 0, "the workload has fewer syncs than that"
    recording, at = run.files.recording, run.failed_at
    late = [
        one.what
        for one in recording.operations[at:]
        if hasattr(one, "what") and isinstance(one.what, BookieMilestone) and one.what.kind in ANSWERS
    ]
    assert late == [], "acknowledged after a failed sync"
    campaign = Campaign(recording, config=run.config, direct=direct, deep=25, seed=position)
    result = campaign.run(every=rounds(4, 64), sample=rounds(2, 16), first_point=at)
    assert result.broken == []
    assert result.images
