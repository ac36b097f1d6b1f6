"""What this machine needs at least for one add: a synced write to the disk and a round trip over loopback TCP.

The journal's way of writing, without the journal: a block of 4 KiB into a file that has been written before, O_DIRECT
and O_DSYNC where the file system has them, else with fdatasync.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 4096
FILE_BLOCKS = 256
MESSAGE_BYTES = 1024
SAMPLES = 500


@dataclass(frozen=True)
class Floor:
    """Medians, in microseconds."""

    write_us: float
    round_trip_us: float

    @property
    def total_us(self) -> float:
        """One after the other."""
        return self.write_us + self.round_trip_us


def measure(directory: Path) -> Floor:
    """Measure both here and now, on the file system that holds `directory`."""
    return Floor(round(statistics.median(_writes(directory)), 1), round(statistics.median(_round_trips()), 1))


def _writes(directory: Path) -> list[float]:
    path = directory / f"floor-{os.getpid()}.tmp"
    path.write_bytes(bytes(BLOCK_BYTES * FILE_BLOCKS))
    try:
        descriptor, direct = _open(path)
        try:
            with mmap.mmap(-1, BLOCK_BYTES) as block:
                block.write(os.urandom(BLOCK_BYTES))
                os.fsync(descriptor)
                return [
                    _timed_write(descriptor, block, number % FILE_BLOCKS, direct=direct)
                    for number in range(SAMPLES)
                ]
        finally:
            os.close(descriptor)
    finally:
        path.unlink()


def _open(path: Path) -> tuple[int, bool]:
    try:
        return os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC), True
    except OSError:
        return os.open(path, os.O_RDWR), False


def _timed_write(descriptor: int, block: mmap.mmap, number: int, *, direct: bool) -> float:
    start = time.perf_counter_ns()
    os.pwrite(descriptor, block, number * BLOCK_BYTES)
    if not direct:
        os.fdatasync(descriptor)
    return (time.perf_counter_ns() - start) / 1e3


def _round_trips() -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = multiprocessing.get_context("spawn").Process(target=_echo, args=(server.getsockname()[1],))
        echo.start()
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = [_timed_round_trip(connection) for _ in range(SAMPLES)]
        echo.join()
    return times


def _timed_round_trip(connection: socket.socket) -> float:
    message = bytes(MESSAGE_BYTES)
    start = time.perf_counter_ns()
    connection.sendall(message)
    _receive(connection)
    return (time.perf_counter_ns() - start) / 1e3


def _receive(connection: socket.socket) -> bool:
    """Take one message; False when the other side has closed."""
    left = MESSAGE_BYTES
    while left:
        data = connection.recv(left)
        if not data:
            return False
        left -= len(data)
    return True


def _echo(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _receive(connection):
            connection.sendall(bytes(MESSAGE_BYTES))
