"""A pytest plugin: the fixture `crash_recorder` records what code under test does to its files, and cuts the power.

Load it with `pytest -p quire_testing.crash.pytest_plugin`, or name it in `pytest_plugins` of the top `conftest.py`.

Source: `docs/crash-images.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.env.interfaces import Files
from quire_testing.crash.images import Image, ImageBuilder
from quire_testing.crash.recorder import RecordingFiles
from quire_testing.kit.memory import MemoryFiles

Judge = Callable[[MemoryFiles, list[Any]], None]
"""Gets the files as a power cut left them, and the milestones before it; asserts what must hold."""


class PowerCutError(AssertionError):
    """A judge did not accept what a power cut may leave."""


class CrashRecorder:
    """What a test needs.

    Args:
        files: where things really happen; memory if None.
        directory: where the code under test may write.

    Attributes:
        files: what the code under test must use for its files (`quire.env.interfaces.Files`, and `create`).
        directory: the same.
    """

    def __init__(self, files: Files | None = None, directory: Path = Path("/recorded")) -> None:
        files = files or MemoryFiles()
        files.make_directory(directory)
        self.directory = directory
        self.files = RecordingFiles(files, directory)

    def milestone(self, what: Any, *, weakens: bool = False) -> None:
        """Note what the code under test has acknowledged to its caller: from here on it must be kept.

        Args:
            what: anything; the judge gets it back.
            weakens: from here on less has to hold: something is about to be deleted.
        """
        self.files.milestone(what, weakens=weakens)

    def images(self, *, every: int = 256, sample: int = 64, seed: int = 0) -> Iterator[Image]:
        """Each state that a power cut could have left so far; `every`, `sample`, `seed` as for `ImageBuilder`."""
        return iter(ImageBuilder(self.files.recording, every=every, sample=sample, seed=seed))

    def check(self, judge: Judge, *, every: int = 256, sample: int = 64, seed: int = 0) -> int:
        """Let a judge look at each image.

        Returns:
            How many there were.

        Raises:
            PowerCutError: it did not accept one; the text says where the power was cut and what was lost.
        """
        count = 0
        for image in self.images(every=every, sample=sample, seed=seed):
            count += 1
            try:
                judge(image.files(), list(image.events))
            except Exception as error:
                raise PowerCutError(f"{image}\n{type(error).__name__}: {error}") from error
        return count


@pytest.fixture
def crash_recorder() -> CrashRecorder:
    """Files in memory whose every change is recorded, to restart on what a power cut could have left."""
    return CrashRecorder()
