"""What the operating system says: CPU time, memory and load, read from /proc.

It knows nothing of clusters. Sampling profilers lie about short work; the kernel's own accounts do not.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time charged to a process with all its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def cpu_of(pids: Iterable[int]) -> float:
    """The same, summed over processes."""
    return sum(cpu_seconds(pid) for pid in pids)


def cpu_of_programs(programs: Mapping[str, str]) -> dict[str, float]:
    """CPU seconds of all processes that run some programs, by name.

    Args:
        programs: by name, what is in the command line of such a process.
    """
    used = dict.fromkeys(programs, 0.0)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text(errors="replace")
            seconds = cpu_seconds(int(process.name))
        except OSError:
            continue  # it has ended meanwhile
        for name, part in programs.items():
            if part in command:
                used[name] += seconds
    return used


def resident_mib(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def load_average() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def free_gib(directory: Path) -> float:
    """What the disk that holds a directory can still take, in GiB."""
    return shutil.disk_usage(directory).free / 2**30


def pin_to(count: int) -> list[int]:
    """Confine this process, and all that it starts, to the first `count` of its CPUs.

    Returns:
        The CPUs that remain.
    """
    mine = sorted(os.sched_getaffinity(0))[:count]
    os.sched_setaffinity(0, mine)
    return mine


@dataclass(frozen=True)
class Machine:
    """Where the figures come from."""

    system: str
    cpu: str
    cpus: int
    memory_gib: float
    filesystem: str
    python: str
    revision: str

    @classmethod
    def here(cls, directory: Path, cpus: int) -> Machine:
        """Describe this machine, and the filesystem that holds `directory`."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        return cls(
            system=f"{platform.system()} {platform.release()}",
            cpu=_cpu_model(),
            cpus=cpus,
            memory_gib=round(memory, 1),
            filesystem=_filesystem(directory),
            python=platform.python_version(),
            revision=_revision(),
        )


def _revision() -> str:
    """The commit, with "-dirty" when what is measured differs from it; new results and documents do not count."""
    measured = (":/src", ":/bench", ":/tools", ":/requirements", ":!/bench/results")
    changed = _said("git", "status", "--porcelain", "--", *measured)
    return _said("git", "rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(directory: Path) -> str:
    """The type of the mount with the longest path that holds the directory."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        mount, kind = line.split()[1:3]
        if directory.resolve().is_relative_to(mount) and len(mount) > len(best[0]):
            best = (mount, kind)
    return best[1]


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
