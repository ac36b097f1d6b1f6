"""Goes through the crash images of a bookie's recorded run: start on each, ask for everything that was promised.

Source: `docs/crash-images.md`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from quire.core.errors import QuireError
from quire.storage.config import StorageConfig
from quire.storage.ledger_storage import LedgerStorage
from quire_testing.crash.bookie_run import DIRECTORY, SMALL, BookieRun, TurnedLedgers, open_storage
from quire_testing.crash.images import Image, ImageBuilder
from quire_testing.crash.operations import Recording
from quire_testing.crash.promises import BrokenPromiseError, Promises, all_entries_of
from quire_testing.crash.recorder import RecordingFiles
from quire_testing.crash.workloads import DiskWorkload
from quire_testing.kit.memory import MemoryFiles

DEEPER = 3
"""How many images of a start are examined, on each level."""


@dataclass(slots=True)
class ImagesResult:
    """What came of the images of one run.

    Attributes:
        images: how many were started on, those inside of starts included.
        nested: those inside of starts.
        in_limbo: on how many the start found a torn write and put a ledger in limbo.
        broken: what went wrong, a line each; empty is good.
    """

    images: int = 0
    nested: int = 0
    in_limbo: int = 0
    broken: list[str] = field(default_factory=list)


class Campaign:
    """Judges images of one recording.

    Args:
        recording: the run, with milestones that are `BookieMilestone`.
        config: the storage's settings.
        direct: whether the disk is written past the page cache.
        capacity: of the disk, in bytes.
        deep: examine one image out of this many: cut the power inside of the start on it, and inside of that start again.
        depth: how many times.
        seed: of samples.
        broken_max: stop after this many.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        config: StorageConfig = SMALL,
        direct: bool = False,
        capacity: int | None = None,
        deep: int = 100,
        depth: int = 3,
        seed: int = 0,
        broken_max: int = 5,
    ) -> None:
        self._recording = recording
        self._config = config
        self._direct = direct
        self._capacity = capacity
        self._deep = deep
        self._depth = depth
        self._chance = random.Random(seed)
        self._broken_max = broken_max
        self.result = ImagesResult()

    def run(
        self, *, every: int = 64, sample: int = 64, first_point: int = 0, points: int = 1
    ) -> ImagesResult:
        """Go through the images of the recording (see `ImageBuilder`)."""
        result = self.result
        promises, taken = Promises(), 0
        seed = self._chance.getrandbits(32)
        images = ImageBuilder(
            self._recording, every=every, sample=sample, seed=seed, first_point=first_point, points=points
        )
        for image in images:
            for event in image.events[taken:]:
                promises.add(event)
            taken = len(image.events)
            try:
                self.judge(image, promises)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what was looked for
                result.broken.append(f"{image}: {type(error).__name__}: {error}")
            if len(result.broken) >= self._broken_max:
                break
        return result

    def judge(self, image: Image, promises: Promises) -> None:
        """Start on an image and ask.

        Raises:
            BrokenPromiseError: something is not as promised.
            QuireError: the start was refused.
        """
        self.result.images += 1
        files = image.files(direct=self._direct, capacity=self._capacity)
        if self._deep and self.result.images % self._deep == 0:
            self._into(files, promises, self._depth)
            return
        storage = self._start(files, promises)
        if self.result.images % 16 == 0:
            self._go_on(files, storage, promises)

    def _start(self, files: MemoryFiles | RecordingFiles, promises: Promises) -> LedgerStorage:
        identity, storage = open_storage(files, self._config, served=bool(promises.bookie_id))
        if promises.bookie_id and identity.bookie_id != promises.bookie_id:
            raise BrokenPromiseError(f"the bookie was {promises.bookie_id} and is {identity.bookie_id} now")
        if storage.report.limbo or storage.report.unknown_in_limbo:
            self.result.in_limbo += 1
        promises.check(storage)
        return storage

    def _go_on(self, files: MemoryFiles, storage: LedgerStorage, promises: Promises) -> None:
        """Stop cleanly and start again: the same, and nothing is found wrong any more."""
        storage.close()
        _, again = open_storage(files, self._config)
        promises.check(again)
        if not again.report.clean or again.report.torn:
            raise BrokenPromiseError("a start after a clean stop finds traces of the power cut")

    def _into(self, files: MemoryFiles, promises: Promises, depth: int) -> None:
        """Record the start itself, and judge starts on images of it: they come to the same."""
        start = files.tree()
        recorder = RecordingFiles(files, DIRECTORY, start=start)
        storage = self._start(recorder, promises)
        if not depth:
            return
        outcome = summary(storage, promises)
        images = list(ImageBuilder(recorder.recording, every=8, sample=4, seed=self._chance.getrandbits(32)))
        for image in self._chance.sample(images, min(DEEPER, len(images))):
            self.result.images += 1
            self.result.nested += 1
            nested = image.files(direct=self._direct, capacity=self._capacity)
            try:
                self._into(nested, promises, depth - 1)
                check = image.files(direct=self._direct, capacity=self._capacity)
                other = summary(open_storage(check, self._config)[1], promises)
            except (BrokenPromiseError, QuireError) as error:
                raise BrokenPromiseError(f"inside the start, {image}: {error}") from error
            if other != outcome:
                raise BrokenPromiseError(
                    f"inside the start, {image}: the second start comes to something else"
                )


def summary(
    storage: LedgerStorage, promises: Promises
) -> dict[int, tuple[tuple[tuple[int, int], ...], bool]]:
    """What a bookie holds of each ledger that a workload names: origin terms and entry ids, and whether it is deleted."""
    ledgers = TurnedLedgers(storage, lambda: None)
    held = {}
    for ledger_id, promise in promises.ledgers.items():
        found, _, _ = all_entries_of(ledgers, ledger_id, promise)
        info = ledgers.info(ledger_id)
        held[ledger_id] = (tuple(sorted(found)), info is not None and bool(info["deleted"]))
    return held


def record(workload: DiskWorkload, *, direct: bool) -> BookieRun:
    """Let a workload happen."""
    run = BookieRun(workload.config, direct=direct, capacity=workload.capacity)
    workload.work(run)
    return run


def go_through(
    workload: DiskWorkload,
    *,
    direct: bool,
    every: int,
    sample: int,
    deep: int = 100,
    seed: int = 0,
    points: int = 1,
) -> ImagesResult:
    """Record a workload, and start on its images."""
    run = record(workload, direct=direct)
    campaign = Campaign(
        run.files.recording, config=run.config, direct=direct, capacity=workload.capacity, deep=deep,
        depth=workload.depth, seed=seed,
    )  # fmt: skip
    return campaign.run(every=every, sample=sample, points=points)
