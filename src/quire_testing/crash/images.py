"""Each state of the disk that a power cut could have left, made from a recording.

Between two syncs everything that is on its way may or may not have arrived: see `disk.py` for the rules. Where the
possible states are few all of them are made, else a seeded sample of the shapes that break programs: all, nothing, a
part from the front, from the back, all but one sector, one sector, a random half; what is missing is what was there
before, or zeros, or garbage.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from quire_testing.crash.disk import SECTOR_BYTES, PendingDisk, PendingFile, renamed
from quire_testing.crash.operations import Milestone, NameChange, Operation, Recording, Write, said
from quire_testing.kit.memory import DIRECTORY, MemoryFiles, Tree

ZEROS = bytes(SECTOR_BYTES)
GARBAGE = random.Random(20261121).randbytes(SECTOR_BYTES)
_OLD, _NEW = "old", "new"
_WORDS = (_OLD, _NEW, "zeros", "garbage")


@dataclass(frozen=True, slots=True)
class Slot:
    """A sector that may be one of several things.

    Attributes:
        file: its file's number.
        sector: its number there.
        options: contents that differ: the old one first, the newest second, zeros and garbage last.
        zeros: which of them stands for zeros.
    """

    file: int
    sector: int
    options: tuple[bytes, ...]
    zeros: int


@dataclass(frozen=True, slots=True)
class Image:
    """One state.

    Attributes:
        point: the crash point: after how many operations the power was cut.
        milestones: how many of the recording's milestones come before.
        tree: names and contents.
        events: the milestones themselves.
        after: the operations up to there.
        choice: what became of each slot and of each change of names.
        slots: the sectors that were on their way.
        changes: the changes of names that were.
    """

    point: int
    milestones: int
    tree: Tree
    events: tuple[Any, ...]
    after: Operation | None
    choice: tuple[tuple[int, ...], tuple[bool, ...], tuple[bool, ...]]
    slots: tuple[Slot, ...]
    changes: tuple[NameChange, ...]

    def files(self, *, direct: bool = False, capacity: int | None = None) -> MemoryFiles:
        """The state as files in memory; writing to them does not change the image."""
        return MemoryFiles(self.tree, direct=direct, capacity=capacity)

    def write_to(self, directory: Path, root: Path | str) -> None:
        """Put the files below `root` into a real directory, for programs that open files themselves."""
        for path, number in sorted(self.tree.names.items()):
            if PurePosixPath(path).is_relative_to(root) and path != str(root):
                target = directory / PurePosixPath(path).relative_to(root)
                if number == DIRECTORY:
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(self.tree.contents[number])

    def __str__(self) -> str:
        sectors, lengths, kept = self.choice
        parts = [f"power cut after operation {self.point} ({said(self.after) if self.after else 'none'})"]
        parts += [
            f"file {slot.file} sector {slot.sector} {_WORDS[min(chosen, 3)]}"
            for slot, chosen in zip(self.slots, sectors, strict=True)
            if chosen != 1
        ]
        parts += ["an old length"] * lengths.count(False)
        parts += [
            f"undone: {said(change)}" for change, done in zip(self.changes, kept, strict=True) if not done
        ]
        return "; ".join(parts)


class ImageBuilder:
    """Makes images.

    Args:
        recording: the run.
        every: at a point with at most this many states all of them are made.
        sample: how many are made at other points.
        seed: of the sample.
        first_point: leave out points before this many operations.
        points: look at one point out of this many.
        powersafe: a write spoils none of a sector's bytes that it does not change; what SQLite calls powersafe overwrite.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        every: int = 64,
        sample: int = 64,
        seed: int = 0,
        first_point: int = 0,
        points: int = 1,
        powersafe: bool = False,
    ) -> None:
        self._recording = recording
        self._every = every
        self._sample = sample
        self._chance = random.Random(seed)
        self._first_point = first_point
        self._points = points
        self._powersafe = powersafe
        self._met = seed

    def __iter__(self) -> Iterator[Image]:
        """All images, by ascending point."""
        disk = PendingDisk(self._recording.start)
        events: list[Any] = []
        after: Operation | None = None
        looked_at = True
        yield from self._at(disk, 0, events, None)
        for index, operation in enumerate(self._recording.operations):
            if isinstance(operation, Milestone):
                if operation.weakens and not looked_at:
                    # Just before: more has to hold than just after.
                    yield from self._at(disk, index, events, after)
                events.append(operation.what)
            else:
                after = operation
                disk.begin(operation)
                if isinstance(operation, Write) and operation.direct:
                    yield from self._at(disk, index, events, after)
                disk.finish(operation)
            looked_at = not self._next_is_milestone(index)
            if looked_at:
                yield from self._at(disk, index + 1, events, after)

    def _next_is_milestone(self, index: int) -> bool:
        operations = self._recording.operations
        return index + 1 < len(operations) and isinstance(operations[index + 1], Milestone)

    # --- one point ------------------------------------------------------------------------------------------------

    def _at(
        self, disk: PendingDisk, point: int, events: list[Any], after: Operation | None
    ) -> Iterator[Image]:
        self._met += 1
        if point < self._first_point or self._met % self._points:
            return
        slots = tuple(_slots(disk, powersafe=self._powersafe))
        longer = [number for number, file in disk.files.items() if file.size != len(file.durable)]
        changes = tuple(disk.changes)
        states = prod(len(slot.options) for slot in slots) << (len(longer) + len(changes))
        chosen = (
            _all(slots, len(longer), len(changes))
            if states <= self._every
            else self._some(slots, len(longer), len(changes))
        )
        milestones = tuple(events)
        for choice in chosen:
            yield Image(
                point,
                len(milestones),
                _tree(disk, slots, longer, changes, choice),
                milestones,
                after,
                choice,
                slots,
                changes,
            )

    def _some(self, slots: tuple[Slot, ...], lengths: int, changes: int) -> Iterator[_Choice]:
        chance = self._chance
        seen: set[_Choice] = set()
        for attempt in range(2 * self._sample):
            if len(seen) == self._sample:
                return
            arrived = self._arrived(attempt, len(slots))
            filler = chance.randrange(4)
            sectors = tuple(
                min(1, len(slot.options) - 1) if new else _missing(slot, filler, chance)
                for slot, new in zip(slots, arrived, strict=True)
            )
            choice = (sectors, self._flags(lengths), self._flags(changes))
            if choice not in seen:
                seen.add(choice)
                yield choice

    def _arrived(self, attempt: int, count: int) -> list[bool]:
        """Which sectors arrived: nothing and everything first, then shapes in turn."""
        chance = self._chance
        cut = chance.randint(0, count)
        match attempt if attempt < 2 else 2 + attempt % 5:
            case 0:
                return [False] * count
            case 1:
                return [True] * count
            case 2:
                return [at < cut for at in range(count)]
            case 3:
                return [at >= cut for at in range(count)]
            case 4:
                return [at != cut for at in range(count)]
            case 5:
                return [at == cut for at in range(count)]
            case _:
                return [bool(chance.getrandbits(1)) for _ in range(count)]

    def _flags(self, count: int) -> tuple[bool, ...]:
        chance = self._chance
        cut = chance.randint(0, count)
        match chance.randrange(3):
            case 0:
                return tuple(at < cut for at in range(count))
            case 1:
                return tuple(at != cut for at in range(count))
            case _:
                return tuple(bool(chance.getrandbits(1)) for _ in range(count))


_Choice = tuple[tuple[int, ...], tuple[bool, ...], tuple[bool, ...]]


def _slots(disk: PendingDisk, *, powersafe: bool) -> Iterator[Slot]:
    """The sectors that are not certain, with what they may be."""
    for number, file in disk.files.items():
        for sector in sorted(file.sectors):
            old = file.old(sector)
            versions = [data for data, _ in reversed(file.sectors[sector])]
            different = list(dict.fromkeys([old, *versions]))
            if len(different) == 1:
                continue  # what is being written is there already
            low, high = _changed(different) if powersafe else (0, SECTOR_BYTES)
            zeros = old[:low] + ZEROS[low:high] + old[high:]
            options = tuple(dict.fromkeys([*different, zeros, old[:low] + GARBAGE[low:high] + old[high:]]))
            yield Slot(number, sector, options, options.index(zeros))


def _changed(versions: list[bytes]) -> tuple[int, int]:
    """Where versions of a sector differ: from the first such byte to behind the last."""
    differ = [at for at, values in enumerate(zip(*versions, strict=True)) if len(set(values)) > 1]
    return differ[0], differ[-1] + 1


def _missing(slot: Slot, filler: int, chance: random.Random) -> int:
    """What is in a sector that did not arrive."""
    if filler == 0:
        return 0
    if filler == 1:
        return slot.zeros
    if filler == 2:
        return len(slot.options) - 1
    return chance.choice([at for at in range(len(slot.options)) if at != 1])


def _all(slots: tuple[Slot, ...], lengths: int, changes: int) -> Iterator[_Choice]:
    for sectors in product(*(range(len(slot.options)) for slot in slots)):
        for flags in product((True, False), repeat=lengths + changes):
            yield sectors, flags[:lengths], flags[lengths:]


def _tree(
    disk: PendingDisk,
    slots: tuple[Slot, ...],
    longer: list[int],
    changes: tuple[NameChange, ...],
    choice: _Choice,
) -> Tree:
    sectors, lengths, kept = choice
    names = renamed(disk.names, [change for change, done in zip(changes, kept, strict=True) if done])
    _drop_orphans(names)
    changed: dict[int, bytearray] = {}
    for number, grown in zip(longer, lengths, strict=True):
        if grown:
            file = disk.files[number]
            changed[number] = _of_length(file, file.size)
    for slot, chosen in zip(slots, sectors, strict=True):
        if chosen:
            data = changed.get(slot.file)
            if data is None:
                data = changed[slot.file] = bytearray(disk.files[slot.file].frozen)
            start = slot.sector * SECTOR_BYTES
            if start < len(data):
                data[start : start + SECTOR_BYTES] = slot.options[chosen][: len(data) - start]
    contents = {
        number: bytes(changed[number]) if number in changed else disk.files[number].frozen
        for number in names.values()
        if number != DIRECTORY
    }
    return Tree(names, contents)


def _of_length(file: PendingFile, size: int) -> bytearray:
    data = bytearray(file.frozen[:size])
    data.extend(bytes(size - len(data)))
    return data


def _drop_orphans(names: dict[str, int]) -> None:
    """Without its directory nothing can be found."""
    for path in sorted(names):
        parent = str(PurePosixPath(path).parent)
        if parent not in {"/", "."} and names.get(parent) != DIRECTORY:
            del names[path]
