"""A bookie's settings: read once, passed down."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quire.core.errors import MisuseError
from quire.core.settings import check_setting, check_settings, number
from quire.net.security.settings import BookieSecurity
from quire.storage.config import StorageConfig
from quire.storage.formats.segment_format import GROUP_HEADER_BYTES
from quire.storage.segments.segment import footer_room
from quire.wire.frame_limits import NATIVE_ROOM, FrameLimits, frame_range

GARBAGE_SECONDS: Final = 60.0
TOMBSTONE_SECONDS: Final = 3600.0
SECONDS_MAX: Final = 1_000_000_000
"""Some thirty years: the longest time that a setting can be."""


def is_wildcard(host: str) -> bool:
    """Whether a host means "every address of this machine", as in `0.0.0.0:3181`."""
    return (not host.strip("[]").strip("0.:") and host != ".") or host == "*"


def _check_host(host: str) -> None:
    """Refuse what no system can look up: clients would try to for ever.

    Raises:
        MisuseError: it is no name and no address.
    """
    try:
        host.encode("idna")
    except UnicodeError as error:
        msg = f"{host!r} is no host name: its parts have 1 to 63 characters each; give another (`BookieConfig.host` or `BookieConfig.advertise`)"
        raise MisuseError(msg, host=host) from error


@dataclass(frozen=True, slots=True)
class BookieConfig:
    """Where a bookie lives and what it may use.

    Args:
        directory: its disk; a new or wiped one is a new bookie.
        name: the readable half of its id; the incarnation of the directory is added.
        host, port: where it listens; port 0 takes a free one.
        advertise: (host, port) that clients receive, port 0: the one where it listens. None: where it listens, which
            must be an address that clients can reach then.
        storage: the disk's settings.
        frame_bytes_max: longest frame of V2 and V3 that it takes, length field included, 64 KiB to what one segment
            and `receive_budget_bytes` hold; our own protocol's may be 32 KiB longer. None: 5 MiB + 10 KiB (5,253,120)
            as Pulsar has it, and 8 MiB for our own.
        receive_budget_bytes: memory for unfinished frames of all connections.
        pending_bytes_max: admitted entries that are not on disk yet; above it, connections are not read.
        read_bytes_max: longest response to one read.
        answer_bytes_max: responses that wait for one connection before its next request is looked at.
        answer_budget_bytes: memory for responses of all connections that are not read; the more of it is taken, the
            shorter responses become.
        partial_frame_seconds: how long a connection's first bytes or a frame may stay unfinished, and responses unread,
            before the connection is cut off.
        long_poll_seconds_max: longest wait of a long poll.
        garbage_seconds: how often deleted ledgers are looked for; 0 = never.
        tombstone_seconds: how long a deleted ledger refuses late adds, fence and key kept.
        connections_max: connections at one time, as far as the process may open so many; a quarter of them may be of
            clients that have not yet shown who they are, or asked anything.
        security: what it asks of clients: TLS, certificates, passwords.
        opening_seconds: how long a client may take until it is through with TLS and its password.
        short_circuit_reads: clients on this machine get the locations of long runs, and read them there if they can open
            the files: nothing is copied twice, and this bookie has time for others.
        id_from_address: a new directory's id is the announced host:port, which Java clients before 4.12 need. Such a bookie
            stays at its address, and an emptied directory cannot have its id again.
        adopt: a person's word: a directory without its cookie takes the one that the cluster keeps for it.
        unknown_is_error: V3 clients get 501 instead of 507 for what may have been lost. Java clients that are too old
            to know 507 cannot read a response that has it.
    """

    directory: Path
    name: str = "bookie"
    host: str = "127.0.0.1"
    port: int = 0
    advertise: tuple[str, int] | None = None
    storage: StorageConfig = field(default_factory=StorageConfig)
    frame_bytes_max: int | None = None
    receive_budget_bytes: int = 64 * 1024 * 1024
    pending_bytes_max: int = 32 * 1024 * 1024
    read_bytes_max: int = 4 * 1024 * 1024
    answer_bytes_max: int = 1024 * 1024
    answer_budget_bytes: int = 128 * 1024 * 1024
    partial_frame_seconds: float = 30.0
    long_poll_seconds_max: float = 60.0
    garbage_seconds: float = number(GARBAGE_SECONDS, 0.0, SECONDS_MAX)
    tombstone_seconds: float = number(TOMBSTONE_SECONDS, 0.0, SECONDS_MAX)
    connections_max: int = 10_000
    security: BookieSecurity = field(default_factory=BookieSecurity)
    opening_seconds: float = 15.0
    short_circuit_reads: bool = True
    unknown_is_error: bool = False
    id_from_address: bool = False
    adopt: bool = False

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            MisuseError: naming the setting, its value and its limits.
        """
        host = self.host if self.advertise is None else self.advertise[0]
        if is_wildcard(host):
            msg = (
                f"{host!r} stands for every address of a machine, and clients cannot connect to it: give the address "
                "that they are to use (`BookieConfig.advertise`, or QUIRE_ADVERTISE)"
            )
            raise MisuseError(msg, host=host)
        for name in {self.host, host}:
            _check_host(name)
        if self.id_from_address and self.stable_name.endswith(":0"):
            msg = (
                "an id from the address needs a port that stays: give it (`BookieConfig.port` or "
                "`BookieConfig.advertise`)"
            )
            raise MisuseError(msg)
        check_settings(self)
        segment = footer_room(self.storage.segment_bytes) - GROUP_HEADER_BYTES - NATIVE_ROOM
        budget = self.receive_budget_bytes - NATIVE_ROOM
        why = (
            f"an entry must fit a segment of {self.storage.segment_bytes} bytes, segment_bytes, and the memory for "
            f"unfinished frames, receive_budget_bytes, {self.receive_budget_bytes} bytes: raise them first"
        )
        allowed = frame_range(min(segment, budget), why)
        check_setting("`BookieConfig.frame_bytes_max`", self.frame_bytes_max, allowed)

    @property
    def stable_name(self) -> str:
        """By what a new directory's cookie names it: its name, or the announced host:port. Another start must bring the same."""
        if not self.id_from_address:
            return self.name
        host, port = self.advertise or (self.host, self.port)
        return f"{host}:{port or self.port}"

    @property
    def offered_directory(self) -> str:
        """The directory that clients on this machine may read segments of, an absolute path; "" if they may not.

        A path that is not UTF-8 cannot be sent to a client.
        """
        directory = os.path.abspath(self.directory)  # noqa: PTH100 - as the locations of runs are named
        try:
            directory.encode()
        except UnicodeEncodeError:
            return ""
        return directory if self.short_circuit_reads else ""

    @property
    def frame_limits(self) -> FrameLimits:
        """The longest frames of each protocol."""
        return FrameLimits.of(self.frame_bytes_max)
