"""Crash images: record what a run does to the disk, make each state that a power cut could have left, restart on it."""

from quire_testing.crash.images import Image, ImageBuilder
from quire_testing.crash.operations import Recording
from quire_testing.crash.recorder import RecordingFiles
from quire_testing.kit.disk import Stopped
from quire_testing.kit.memory import MemoryFiles, Tree

__all__ = ["Image", "ImageBuilder", "MemoryFiles", "Recording", "RecordingFiles", "Stopped", "Tree"]
