"""What the kernel says of a process."""

from pathlib import Path


def _status(pid, name):
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(name + ":")]
    return int(line.split()[1]) * 1024


def resident(pid):
    """The resident memory of a process, in bytes."""
    return _status(pid, "VmRSS")


def highest(pid):
    """The most resident memory that a process has ever had, in bytes."""
    return _status(pid, "VmHWM")


def descriptors(pid):
    """How many files and sockets a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
