"""The bytes of a ledger's state: all that a bookie durably knows of a ledger besides its entries.

Layout: `docs/formats/segment.md`, "Ledger state". The newest state of a ledger is the whole of its state. Nothing here
opens a file.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from quire.core.bookie import limbo
from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.limbo import EVERY_ID, Limbo
from quire.core.ids import ID_MAX, NO_ENTRY
from quire.storage.formats.segment_format import FormatError
from quire.wire.entry import Buffer
from quire.wire.layout import Field, FieldUse, Layout

STATE_VERSION: Final = 2
DEAD_RANGES_MAX: Final = 64
"""At one more, nothing is dropped until a range has no older data left."""
FENCED: Final = 1
SHRUNK: Final = 0x80

_UNTIL: Final = slice(32, 40)
"""Where a state says until when its tombstone stands."""
_BOOKIE = FieldUse("bookie", "bookie")
_UNUSED = FieldUse("none yet", "bookie")

STATE: Final = Layout(
    "Ledger state",
    [
        Field("version", "B", FieldUse("bookie", "bookie")),
        Field("flags: 1 fenced, 128 shrunk tombstone", "B", _BOOKIE),
        Field("digest type", "B", _BOOKIE),
        Field("key length, 0 or 20", "B", _BOOKIE),
        Field("length of the explicit LAC body", "I", _BOOKIE),
        Field("token of the ledger's creation", "Q", _BOOKIE),
        Field("term", "Q", _BOOKIE),
        Field("LAC", "q", _BOOKIE),
        Field("tombstone until, wall clock ms, 0 = alive", "Q", _BOOKIE),
        Field("entries up to this LSN are dead", "Q", _BOOKIE),
        Field("LSN of the last record before the term was taken", "Q", _BOOKIE),
        Field("term of the writer that sent the LAC", "Q", _BOOKIE),
        Field("LAFR, -1 = not known", "q", _BOOKIE),
        Field("entries below this id are dead", "q", _UNUSED),
        Field("LSN of the limbo", "Q", FieldUse("bookie", "bookie, and who clears limbo")),
        Field("the limbo covers ids below this, 2^63 = all", "Q", _BOOKIE),
        Field("ranges of the limbo, at most 16", "B", _UNUSED),
        Field("dead ranges, at most 64", "B", _BOOKIE),
        Field("zero", "H", _UNUSED),
    ],
)
_LIMBO_RANGE: Final = Layout(
    "Range of a limbo",
    [Field("first id", "q", _UNUSED), Field("last id", "q", _UNUSED)],
)
_DEAD_RANGE: Final = Layout(
    "Dead range",
    [
        Field("first id", "q", _BOOKIE),
        Field("last id", "q", _BOOKIE),
        Field("LSN up to which it applies", "Q", _BOOKIE),
    ],
)
SHRUNK_STATE: Final = Layout(
    "Shrunk tombstone",
    [
        Field("version", "B", _BOOKIE),
        Field("flags: 128", "B", _BOOKIE),
        Field("zero", "H", _BOOKIE),
        Field("entries up to this LSN are dead", "Q", _BOOKIE),
    ],
)
TABLES: Final = (STATE, _LIMBO_RANGE, _DEAD_RANGE, SHRUNK_STATE)


class DeadRange(NamedTuple):
    """Entries first..last with an LSN up to `through` are dead."""

    first: int
    last: int
    through: int


class StoredLedgerState(NamedTuple):
    """A ledger's state as it is stored.

    Attributes:
        facts: what the ledger's machine knows; None in a shrunk tombstone.
        dead_through: entries with an LSN up to this are dead.
        dead_below: entries with an id below this are dead, whatever their LSN.
        dead_ranges: what else is dead, each up to an LSN.
    """

    facts: LedgerFacts | None
    dead_through: int = 0
    dead_below: int = 0
    dead_ranges: tuple[DeadRange, ...] = ()


def encode_state(state: StoredLedgerState) -> bytes:
    """A ledger's whole state.

    Raises:
        FormatError: it has more ranges than a state holds, or ranges that are none.
    """
    facts = state.facts
    if facts is None:
        return SHRUNK_STATE.struct.pack(STATE_VERSION, SHRUNK, 0, state.dead_through)
    _check_dead(facts.ledger_id, state)
    held = facts.limbo
    since, below, unsure = (held.lsn, held.below, held.ranges) if held is not None else (0, 0, ())
    if held is not None:
        _check_limbo(facts.ledger_id, held)
    return b"".join(
        [
            STATE.struct.pack(
                STATE_VERSION,
                FENCED if facts.fenced else 0,
                facts.digest_type,
                len(facts.key),
                len(facts.explicit_lac),
                facts.token,
                facts.term,
                facts.lac,
                facts.deleted_until_ms,
                state.dead_through,
                facts.term_lsn,
                facts.lac_term,
                facts.lafr,
                state.dead_below,
                since,
                below,
                len(unsure),
                len(state.dead_ranges),
                0,
            ),
            *[_LIMBO_RANGE.struct.pack(*one) for one in unsure],
            *[_DEAD_RANGE.struct.pack(*one) for one in state.dead_ranges],
            facts.key,
            facts.explicit_lac,
        ]
    )


def decode_state(ledger_id: int, body: Buffer) -> StoredLedgerState:
    """A ledger's state from its bytes.

    Raises:
        FormatError: naming the ledger and the field that does not fit.
    """
    if not len(body):
        raise FormatError(f"the state of ledger {ledger_id} is truncated")
    if body[0] != STATE_VERSION:
        raise FormatError(
            f"the state of ledger {ledger_id} has version {body[0]}; this program reads {STATE_VERSION}"
        )
    if len(body) > 1 and body[1] & SHRUNK:
        return _decode_shrunk(ledger_id, body)
    return _decode_whole(ledger_id, body)


def is_shrunk(body: Buffer) -> bool:
    """Whether a state's bytes are a shrunk tombstone."""
    return len(body) == SHRUNK_STATE.size and body[1] == SHRUNK


def brings_life(body: Buffer) -> bool:
    """Whether a state's bytes are those of a ledger that is not deleted."""
    return not is_shrunk(body) and not any(body[_UNTIL])


def check_acted_on(ledger_id: int, state: StoredLedgerState) -> None:
    """Refuse what this program can read and does not act on: to leave it aside would serve what is dead.

    Raises:
        FormatError: naming the ledger and the field.
    """
    if state.dead_below:
        raise FormatError(
            f"the state of ledger {ledger_id} has entries dead below {state.dead_below}, which this version does not act on"
        )


def _decode_shrunk(ledger_id: int, body: Buffer) -> StoredLedgerState:
    if len(body) != SHRUNK_STATE.size:
        raise FormatError(f"the shrunk tombstone of ledger {ledger_id} has {len(body)} bytes")
    _, flags, zero, dead_through = SHRUNK_STATE.struct.unpack(body)
    if flags != SHRUNK or zero:
        raise FormatError(f"the shrunk tombstone of ledger {ledger_id} has flags {flags:#x}")
    return StoredLedgerState(None, dead_through)


def _decode_whole(ledger_id: int, body: Buffer) -> StoredLedgerState:
    if len(body) < STATE.size:
        raise FormatError(f"the state of ledger {ledger_id} is truncated")
    (
        _, flags, digest_type, key_bytes, lac_bytes, token, term, lac, until, dead_through, term_lsn, lac_term, lafr,
        dead_below, since, below, unsure, dead, zero,
    ) = STATE.struct.unpack_from(body)  # fmt: skip
    ranges_at = STATE.size
    dead_at = ranges_at + unsure * _LIMBO_RANGE.size
    key_at = dead_at + dead * _DEAD_RANGE.size
    lac_at = key_at + key_bytes
    if flags & ~FENCED or zero or len(body) != lac_at + lac_bytes:
        raise FormatError(f"the state of ledger {ledger_id} does not fit its version")
    if lac < NO_ENTRY or lafr < NO_ENTRY:
        raise FormatError(f"the state of ledger {ledger_id} has LAC {lac} and LAFR {lafr}")
    view = memoryview(body)
    held: Limbo | None = None
    if since or below or unsure:
        held = Limbo(since, below, tuple(_LIMBO_RANGE.struct.iter_unpack(view[ranges_at:dead_at])))
        _check_limbo(ledger_id, held)
    facts = LedgerFacts(
        ledger_id=ledger_id,
        key=bytes(view[key_at:lac_at]),
        token=token,
        digest_type=digest_type,
        fenced=bool(flags & FENCED),
        limbo=held,
        term=term,
        lac=lac,
        explicit_lac=bytes(view[lac_at:]),
        deleted_until_ms=until,
        term_lsn=term_lsn,
        lac_term=lac_term,
        lafr=lafr,
    )
    ranges = map(DeadRange._make, _DEAD_RANGE.struct.iter_unpack(view[dead_at:key_at]))
    state = StoredLedgerState(facts, dead_through, dead_below, tuple(ranges))
    _check_dead(ledger_id, state)
    return state


def _check_limbo(ledger_id: int, held: Limbo) -> None:
    if not held.below and not held.ranges:
        raise FormatError(
            f"the state of ledger {ledger_id} has a limbo, LSN {held.lsn}, that covers no entry"
        )
    if held.below > EVERY_ID or (held.below and held.ranges) or len(held.ranges) > limbo.RANGES_MAX:
        raise FormatError(
            f"the state of ledger {ledger_id} has a limbo below {held.below} with {len(held.ranges)} ranges: it is about "
            f"the ids below a bound, or about 1 to {limbo.RANGES_MAX} ranges"
        )
    _check_ranges(ledger_id, "limbo", held.ranges)


def _check_dead(ledger_id: int, state: StoredLedgerState) -> None:
    if len(state.dead_ranges) > DEAD_RANGES_MAX:
        raise FormatError(
            f"the state of ledger {ledger_id} would have {len(state.dead_ranges)} dead ranges; it holds "
            f"{DEAD_RANGES_MAX}: nothing more is dropped until one of them has no older data left"
        )
    if state.dead_below < 0:
        raise FormatError(
            f"the state of ledger {ledger_id} says that entries below {state.dead_below} are dead"
        )
    for one in state.dead_ranges:
        if not 0 <= one.first <= one.last <= ID_MAX:
            raise FormatError(f"the state of ledger {ledger_id} has the dead range {one.first}..{one.last}")


def _check_ranges(ledger_id: int, what: str, ranges: tuple[tuple[int, int], ...]) -> None:
    for first, last in ranges:
        if not 0 <= first <= last <= ID_MAX:
            raise FormatError(f"the state of ledger {ledger_id} has the range {first}..{last} in its {what}")
    for (_, last), (first, _) in pairwise(ranges):
        if first <= last:
            raise FormatError(
                f"the ranges of the {what} of ledger {ledger_id} are not apart: {last}, {first}"
            )
