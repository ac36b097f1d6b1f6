"""Storage with one sync left out, or that answers too early: the crash images of a run show each."""

from __future__ import annotations

import re

import pytest

from quire.storage.journal import Journal
from quire.storage.reclaiming.dropping import EntryDropper
from quire.storage.reclaiming.relocating import Relocator
from quire_testing.crash.bookie_run import BookieRun
from quire_testing.crash.campaign import Campaign
from quire_testing.crash.workloads import WORKLOADS
from quire_testing.kit.stepped import StepWorker
from support.crash_faults import ForgetfulFiles

pytestmark = pytest.mark.long
BY_NAME = {workload.name: workload for workload in WORKLOADS}


class HastyWorker(StepWorker):
    """Says that a job is done, and does it later."""

    def submit(self, job, done):
        super().submit(lambda: None, done)
        super().submit(job, lambda result: None)


def broken(name, *, direct=False, wrap=lambda files: files, worker=StepWorker):
    """What the images of a workload show."""
    workload = BY_NAME[name]

    class Run(BookieRun):
        def start(self):
            self.make_worker = worker
            super().start()

    run = Run(workload.config, direct=direct, capacity=workload.capacity, wrap=wrap)
    workload.work(run)
    campaign = Campaign(
        run.files.recording,
        config=run.config,
        direct=direct,
        capacity=workload.capacity,
        deep=0,
        broken_max=1,
        seed=3,
    )
    return campaign.run(every=64, sample=24).broken


@pytest.mark.parametrize(
    ("kind", "workload", "direct", "told"),
    [
        ("group", "sizes", False, "acknowledged"),
        ("group", "fences", True, "acknowledged|fence"),
        ("header", "rolls", False, "DamagedSegmentError"),
        ("footer", "rolls", False, "checksum"),
        ("opened", "rolls", False, "acknowledged"),
        ("recycled", "recycled files", False, "DamagedSegmentError"),
        ("before the start", "killed anywhere", False, "missing|verify|no valid group"),
        ("names found", "killed while recycling", False, "DamagedSegmentError"),
        ("cookie", "sizes", False, "WrongDirectoryError|is .* now"),
    ],
)
def test_a_sync_that_is_left_out_is_missed(kind, workload, direct, told) -> None:
    forgetful = []

    def wrap(files):
        forgetful.append(ForgetfulFiles(files, kind))
        return forgetful[0]

    (line,) = broken(workload, direct=direct, wrap=wrap)
    assert forgetful[0].left_out
    assert re.search(told, line), line


def test_an_answer_before_the_write_is_noticed() -> None:
    (line,) = broken("groups on the worker", worker=HastyWorker)
    assert "acknowledged" in line


def test_without_a_mutant_nothing_is_found() -> None:
    assert broken("rolls") == []


def test_a_source_that_is_retired_without_its_copies_is_missed(monkeypatch) -> None:
    monkeypatch.setattr(Relocator, "put_run", lambda *_: None)
    (line,) = broken("compaction")
    assert re.search("acknowledged|no such", line), line


def test_a_copy_that_is_on_no_disk_when_its_source_is_given_back_is_missed(monkeypatch) -> None:
    """The retirement is acted on before it is durable, and with it before the copies are."""
    monkeypatch.setattr(Journal, "wait", lambda _self, callback, tag: callback.stored(tag, None))
    (line,) = broken("compaction")
    assert line


def test_a_truncation_that_is_answered_too_early_is_noticed(monkeypatch) -> None:
    def hasty(dropper, ledger_id, *what, **which):
        *what, callback, tag = what
        truncate(dropper, ledger_id, *what, callback, lambda _: None, **which)
        callback.stored(tag, None)

    truncate = EntryDropper.truncate
    monkeypatch.setattr(EntryDropper, "truncate", hasty)
    (line,) = broken("truncations")
    assert "was truncated and is back" in line


def test_a_truncation_that_takes_what_came_behind_it_is_noticed(monkeypatch) -> None:
    def lax(dropper, *what):
        init(dropper, *what[:-1], what[-1].but(truncate_takes=lambda origin, term: origin <= term))

    init = EntryDropper.__init__
    monkeypatch.setattr(EntryDropper, "__init__", lax)
    (line,) = broken("truncations")
    assert "acknowledged" in line
