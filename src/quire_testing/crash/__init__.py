"""Crash images: record what a run does to the disk, make each state that a power cut could have left, restart on it."""

from quire_testing.crash.images import Image, ImageBuilder
from quire_testing.crash.memory import MemoryFiles
from quire_testing.crash.operations import Recording, Tree
from quire_testing.crash.recorder import RecordingFiles, Stopped

__all__ = ["Image", "ImageBuilder", "MemoryFiles", "Recording", "RecordingFiles", "Stopped", "Tree"]
