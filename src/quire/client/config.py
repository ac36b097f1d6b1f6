"""What a client can be told to do otherwise: sizes in bytes, times in milliseconds, each with its limits.

Read once when the client is made and passed down; nothing here changes afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from quire.core.errors import MisuseError
from quire.net.security import ClientSecurity

KIB = 1024
MIB = 1024 * KIB

_LIMITS: dict[str, tuple[int, int]] = {
    "run_bytes_max": (1, 4 * MIB),
    "entry_bytes_max": (1, 64 * MIB),
    "window_bytes_max": (64 * KIB, 16 * 1024 * MIB),
    "slot_unsent_bytes_max": (16 * KIB, 16 * 1024 * MIB),
    "slow_after_ms": (1, 3_600_000),
    "add_timeout_ms": (1, 3_600_000),
    "quarantine_ms": (0, 3_600_000),
    "change_retry_ms_min": (1, 3_600_000),
    "change_retry_ms_max": (1, 3_600_000),
    "metadata_timeout_ms": (1, 3_600_000),
    "metadata_attempts_max": (1, 1000),
    "probe_timeout_ms": (1, 3_600_000),
    "explicit_lac_after_ms": (1, 3_600_000),
    "explicit_lac_timeout_ms": (1, 3_600_000),
    "read_timeout_ms": (1, 3_600_000),
    "speculative_read_ms": (1, 3_600_000),
    "read_bytes_max": (1, 64 * MIB),
    "read_ahead_bytes_max": (1, 16 * 1024 * MIB),
    "long_poll_wait_ms": (1, 3_600_000),
    "recovery_timeout_ms": (1, 3_600_000),
    "recovery_read_bytes_max": (1, 64 * MIB),
    "recovery_attempts_max": (1, 1000),
    "recovery_patience_ms": (0, 3_600_000),
}
PROTOCOLS = ("auto", "auto-v2", "v2", "v3")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How one client behaves; the defaults suit a rack of ordinary machines.

    Attributes:
        run_bytes_max: entries of one ledger that one loop turn collects into one run; a larger entry is a run of
            its own.
        entry_bytes_max: the largest payload; below 4 MiB so that an entry with its header fits a frame everywhere.
        window_bytes_max: bytes of one ledger that may be unconfirmed or unsent before `append` waits.
        slot_unsent_bytes_max: a bookie with more than this unsent and no sign of life for `slow_after_ms`, while
            the others keep up, counts as failed before its add timeout.
        slow_after_ms: see above.
        add_timeout_ms: how long a bookie may take to answer an add.
        quarantine_ms: how long a failed bookie is chosen for new ensembles only when nothing else is left.
        change_retry_ms_min: first wait before another bookie is looked for when a slot is absent, and before another
            that failed lately is tried where nothing else is left; doubles.
        change_retry_ms_max: where that doubling stops.
        metadata_timeout_ms: after this a metadata request counts as "outcome unknown".
        metadata_attempts_max: unanswered metadata requests in a row before a writer gives up.
        probe_timeout_ms: how long an absent bookie may take to show that it is back.
        explicit_lac_after_ms: how long a writer has been idle when it tells all bookies its LAC. Where a reader
            follows it is told at once; a reader that comes in between may see the last run that much later.
        explicit_lac_timeout_ms: how long a bookie may take to answer an explicit LAC.
        read_timeout_ms: how long a bookie may take to answer a read.
        speculative_read_ms: after this without an answer the next bookie is asked as well.
        read_bytes_max: bytes that one range read asks for.
        read_ahead_bytes_max: bytes that a scan may fetch ahead of its consumer.
        long_poll_wait_ms: how long a bookie may hold a tail reader's request; then another is asked too, so this
            is also about how long one that hangs holds a tail up.
        recovery_timeout_ms: how long a bookie may take to answer a request of a recovery.
        recovery_read_bytes_max: bytes that one recovery read asks for.
        recovery_attempts_max: lost compare-and-swaps in a row before a recovery gives up.
        recovery_patience_ms: how long a recovery that too few bookies answered is run again by itself; longer than a
            lost connection takes to be tried again.
        short_circuit_reads: long runs of a bookie on this machine are read out of its files where the system allows
            that, not received from it.
        protocol: "auto" speaks our own protocol with every bookie that announces it and V3 with the others, "auto-v2"
            V2 with the others; "v2" and "v3" speak that with every bookie.
        protocol_of: ("host:port", protocol) of bookies that are spoken to otherwise.
        security: TLS, and who this client is; None = what the file says that the environment's `QUIRE_SECURITY`
            names, if it names one.
    """

    run_bytes_max: int = MIB
    entry_bytes_max: int = 4 * MIB - 4 * KIB
    window_bytes_max: int = 64 * MIB
    slot_unsent_bytes_max: int = 16 * MIB
    slow_after_ms: int = 500
    add_timeout_ms: int = 10_000
    quarantine_ms: int = 5_000
    change_retry_ms_min: int = 200
    change_retry_ms_max: int = 5_000
    metadata_timeout_ms: int = 10_000
    metadata_attempts_max: int = 8
    probe_timeout_ms: int = 1_000
    explicit_lac_after_ms: int = 5_000
    explicit_lac_timeout_ms: int = 5_000
    read_timeout_ms: int = 5_000
    speculative_read_ms: int = 200
    read_bytes_max: int = 4 * MIB
    read_ahead_bytes_max: int = 16 * MIB
    long_poll_wait_ms: int = 1_000
    recovery_timeout_ms: int = 10_000
    recovery_read_bytes_max: int = MIB
    recovery_attempts_max: int = 20
    recovery_patience_ms: int = 3_000
    short_circuit_reads: bool = True
    protocol: str = "auto"
    protocol_of: tuple[tuple[str, str], ...] = ()
    security: ClientSecurity | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            MisuseError: naming the field, its value and its limits.
        """
        for word in (self.protocol, *(protocol for _, protocol in self.protocol_of)):
            if word not in PROTOCOLS:
                msg = f"ClientConfig.protocol must be one of {', '.join(PROTOCOLS)}, got {word!r}"
                raise MisuseError(msg)
        for field in fields(self):
            if field.name not in _LIMITS:
                continue
            low, high = _LIMITS[field.name]
            value = getattr(self, field.name)
            if not isinstance(value, int) or not low <= value <= high:
                msg = f"ClientConfig.{field.name} must be an integer from {low} to {high}, got {value!r}"
                raise MisuseError(msg)
        if self.entry_bytes_max > self.window_bytes_max:
            msg = f"an entry of {self.entry_bytes_max} bytes would never fit a window of {self.window_bytes_max}"
            raise MisuseError(msg)
        if self.change_retry_ms_min > self.change_retry_ms_max:
            msg = f"change_retry_ms_min ({self.change_retry_ms_min}) is above its maximum"
            raise MisuseError(msg)
