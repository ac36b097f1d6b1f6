"""A bookie's disk in memory: what is written in a job of its worker is durable when the job is done.

A crash forgets the jobs that have not been done; nothing else is lost.
"""

from __future__ import annotations

from quire.storage.directory.boot_file import BOOT_FILE, MARKER_FILE
from quire_testing.kit.memory import MemoryFiles


class BookieFiles(MemoryFiles):
    """The files of one bookie, which may rot and may all be lost."""

    def damage(self, content: bytes) -> None:
        """Flip the last byte of these bytes wherever they are."""
        for node in self.nodes.values():
            at = node.data.find(content)
            if at >= 0:
                last = at + len(content) - 1
                node.write(bytes([node.data[last] ^ 0xFF]), last)

    def wipe(self) -> None:
        """All is lost, but how often the bookie was started."""
        self.nodes = {
            path: node for path, node in self.nodes.items() if path.endswith((BOOT_FILE, MARKER_FILE))
        }
