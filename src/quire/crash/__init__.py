"""Crash images: record what a run does to the disk, make each state that a power cut could have left, restart on it."""

from quire.crash.images import Image, ImageBuilder
from quire.crash.memory import MemoryFiles
from quire.crash.operations import Recording, Tree
from quire.crash.recorder import RecordingFiles, Stopped

__all__ = ["Image", "ImageBuilder", "MemoryFiles", "Recording", "RecordingFiles", "Stopped", "Tree"]
