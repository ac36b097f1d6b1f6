"""The configuration of a client: sizes in bytes, times in milliseconds, each with its limits.

Read once when the client is made and passed down; nothing here changes afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.errors import MisuseError
from quire.core.ids import ENSEMBLE_MAX
from quire.core.settings import Choice, check_setting, check_settings, choice, number
from quire.net.security.settings import ClientSecurity
from quire.wire.frame_limits import HEADER_ROOM, NATIVE_ROOM, FrameLimits, frame_range

KIB = 1024
MIB = 1024 * KIB
RECEIVE_BUDGET_BYTES = 64 * MIB
"""Memory for unfinished responses."""

PROTOCOLS = ("auto", "auto-v2", "v2", "v3")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """How one client behaves; the defaults suit a rack of ordinary machines.

    Attributes:
        run_bytes_max: entries of one ledger that one loop turn collects into one run; a larger entry is a run of
            its own.
        frame_bytes_max: longest frame of V2 and V3 that is sent and taken, length field included, 64 KiB to nearly
            64 MiB; our own protocol's may be 32 KiB longer. None: 5 MiB + 10 KiB (5,253,120), as Pulsar sets Java's
            bookies, and 8 MiB for our own. Bookies should have the same. Runs and reads never ask for more than half.
        entry_bytes_max: the largest payload. None: as much as fits a frame of V2 and V3 (5,252,896 bytes by default)
            and the window, so that every bookie takes it and every client can read it. More, up to what our own
            protocol's frames hold, goes only to bookies that speak it.
        window_bytes_max: bytes of one ledger that may be unconfirmed or unsent before `append` waits.
        slot_unsent_bytes_max: a bookie with more than this unsent and no sign of life for `slow_after_ms`, while
            the others keep up, counts as failed before its add timeout.
        slow_after_ms: see above.
        add_timeout_ms: how long a bookie may take to answer an add. For time in which this process did not run no bookie fails.
        flush_ms: closing a ledger, a log or the client waits until every bookie has what was acknowledged. One that
            acknowledges nothing for so long is abandoned, and what it lacks stands in the ledger's record as a hole;
            one that failed lately gets a tenth of it. After `add_timeout_ms` no bookie is waited for. 0: none ever is.
        quarantine_ms: how long a failed bookie is chosen for new ensembles only when nothing else is left.
        change_retry_ms_min: first wait before another bookie is looked for when a slot is absent, and before another
            that failed lately is tried where nothing else is left; doubles.
        change_retry_ms_max: where that doubling stops.
        left_wait_ms_min: an idle writer whose bookie is not registered any more, or as read-only, waits so long and up to
            `left_wait_ms_max`, drawn by chance, before it puts another in its place; for one that still answers, half of
            `left_wait_ms_max` longer.
        left_wait_ms_max: see above.
        quorum_wait_ms: how long a writer that cannot reach its ack quorum waits for its bookies to answer again, or for
            others, before it ends with `QuorumLostError`. Appends wait for room in the window meanwhile, and nothing is
            confirmed that is not on Qa bookies. Bookies that refuse this client (TLS, SASL) are not waited for. 0: the
            writer ends at once.
        metadata_timeout_ms: after this a metadata request counts as "outcome unknown".
        metadata_attempts_max: unanswered metadata requests in a row before a writer gives up.
        probe_timeout_ms: how long an absent bookie may take to show that it is back.
        lac_after_ms: how long what is confirmed waits for an add that carries the LAC; then the LAC is sent to the
            ledger's bookies, with those of other ledgers in one frame for each bookie. So a new reader sees an
            acknowledged entry within about twice this time. Where a reader already waits it is sent at once.
        explicit_lac_after_ms: how long a writer has been idle when it sends its LAC to bookies that take no such
            frames (Java's, and older ones of ours), each ledger's in a request of its own.
        explicit_lac_timeout_ms: how long a bookie may take to answer either.
        read_timeout_ms: how long a bookie may take to answer a read.
        speculative_read_ms: after this without a response the request goes to the next bookie as well.
        read_bytes_max: bytes that one range read asks for.
        read_ahead_bytes_max: bytes that a scan may fetch ahead of its consumer.
        long_poll_wait_ms: how long a bookie may hold a tail reader's request while entries come; then the request goes
            to others too, so this is also about how long one that hangs holds a tail up.
        idle_poll_wait_ms: how long each bookie may hold the request of a tail to which nothing came for that time; at
            most 60,000 with a bookie's default.
        recovery_timeout_ms: how long a bookie may take to answer a request of a recovery.
        recovery_read_bytes_max: bytes that one recovery read asks for.
        recovery_attempts_max: lost compare-and-swaps in a row before a recovery gives up.
        recovery_patience_ms: how long a recovery with too few responses is repeated; longer than a
            lost connection takes to be tried again.
        silent_wait_ms: before a recovery accepts the end that enough bookies report, how long it waits,
            once, for a registered bookie that has not responded: it may hold what the others lost.
        short_circuit_reads: long runs of a bookie on this machine are read out of its files where the system allows
            that, not received from it.
        min_present: how many of a new ledger's E bookies must be there where its creation does not say it, as far as
            its Qa and E allow; None: Qa. The others are absent slots: bookies that are read-only or away.
        protocol: "auto" speaks our own protocol with every bookie that announces it and V3 with the others, "auto-v2"
            V2 with the others; "v2" and "v3" speak that with every bookie.
        protocol_of: ("host:port" or "[IPv6]:port", protocol) of bookies with another protocol.
        security: TLS, and who this client is; None = what the file says that the environment's `QUIRE_SECURITY`
            names, if it names one.
    """

    run_bytes_max: int = number(MIB, 1, 4 * MIB)
    frame_bytes_max: int | None = None
    entry_bytes_max: int | None = number(None, 1, 64 * MIB)
    window_bytes_max: int = number(64 * MIB, 64 * KIB, 16 * 1024 * MIB)
    slot_unsent_bytes_max: int = number(16 * MIB, 16 * KIB, 16 * 1024 * MIB)
    slow_after_ms: int = number(500, 1, 3_600_000)
    add_timeout_ms: int = number(10_000, 1, 3_600_000)
    flush_ms: int = number(1_000, 0, 3_600_000)
    quarantine_ms: int = number(5_000, 0, 3_600_000)
    change_retry_ms_min: int = number(200, 1, 3_600_000)
    change_retry_ms_max: int = number(5_000, 1, 3_600_000)
    left_wait_ms_min: int = number(5_000, 0, 3_600_000)
    left_wait_ms_max: int = number(30_000, 0, 3_600_000)
    quorum_wait_ms: int = number(10_000, 0, 3_600_000)
    metadata_timeout_ms: int = number(10_000, 1, 3_600_000)
    metadata_attempts_max: int = number(8, 1, 1000)
    probe_timeout_ms: int = number(1_000, 1, 3_600_000)
    lac_after_ms: int = number(50, 1, 3_600_000)
    explicit_lac_after_ms: int = number(5_000, 1, 3_600_000)
    explicit_lac_timeout_ms: int = number(5_000, 1, 3_600_000)
    read_timeout_ms: int = number(5_000, 1, 3_600_000)
    speculative_read_ms: int = number(200, 1, 3_600_000)
    read_bytes_max: int = number(4 * MIB, 1, 64 * MIB)
    read_ahead_bytes_max: int = number(16 * MIB, 1, 16 * 1024 * MIB)
    long_poll_wait_ms: int = number(1_000, 1, 3_600_000)
    idle_poll_wait_ms: int = number(35_000, 1, 3_600_000)
    recovery_timeout_ms: int = number(10_000, 1, 3_600_000)
    recovery_read_bytes_max: int = number(MIB, 1, 64 * MIB)
    recovery_attempts_max: int = number(20, 1, 1000)
    recovery_patience_ms: int = number(3_000, 0, 3_600_000)
    silent_wait_ms: int = number(200, 0, 3_600_000)
    short_circuit_reads: bool = True
    min_present: int | None = number(None, 1, ENSEMBLE_MAX)
    protocol: str = choice(*PROTOCOLS)
    protocol_of: tuple[tuple[str, str], ...] = ()
    security: ClientSecurity | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            MisuseError: naming the field, its value and its limits.
        """
        check_settings(self)
        for _, protocol in self.protocol_of:
            check_setting("`ClientConfig.protocol_of`", protocol, Choice(PROTOCOLS))
        self._check_sizes()

    def _check_sizes(self) -> None:
        """What sizes say of one another; with a shorter frame, what is asked for at one time is shorter too."""
        why = f"unfinished answers have {RECEIVE_BUDGET_BYTES} bytes together"
        allowed = frame_range(RECEIVE_BUDGET_BYTES - NATIVE_ROOM, why)
        check_setting("`ClientConfig.frame_bytes_max`", self.frame_bytes_max, allowed)
        if self.frame_bytes_max is not None:
            for name in ("run_bytes_max", "read_bytes_max", "recovery_read_bytes_max"):
                object.__setattr__(self, name, min(getattr(self, name), self.frame_bytes_max // 2))
        if self.entry_bytes_max is None:
            return
        if self.entry_bytes_max > self.window_bytes_max:
            msg = f"an entry of {self.entry_bytes_max} bytes would never fit a window of {self.window_bytes_max}"
            raise MisuseError(msg)
        largest = self.frame_limits.native_entry - HEADER_ROOM
        if self.entry_bytes_max > largest:
            msg = (
                f"ClientConfig.entry_bytes_max is {self.entry_bytes_max}, and no frame holds a payload of more than "
                f"{largest} bytes: raise `frame_bytes_max` here and at the bookies first"
            )
            raise MisuseError(msg)

    @property
    def leave_ms(self) -> int:
        """How long a client that is closed, or a writer that is left with an error, may take to confirm what it took."""
        return self.add_timeout_ms + self.metadata_timeout_ms

    @property
    def frame_limits(self) -> FrameLimits:
        """The longest frames of each protocol."""
        return FrameLimits.of(self.frame_bytes_max)

    @property
    def portable_bytes_max(self) -> int:
        """The largest payload that fits a frame of every protocol, whatever the ledger's digest."""
        return self.frame_limits.bookkeeper_entry - HEADER_ROOM

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload of an entry, for callers that cut a stream of bytes into entries."""
        if self.entry_bytes_max is not None:
            return self.entry_bytes_max
        return min(self.portable_bytes_max, self.window_bytes_max)


def with_frames(config: ClientConfig | None, frame_bytes_max: int | None) -> ClientConfig | None:
    """The settings with another limit of frames, if one is passed.

    Raises:
        MisuseError: the limit cannot be.
    """
    if frame_bytes_max is None:
        return config
    return replace(config or ClientConfig(), frame_bytes_max=frame_bytes_max)
