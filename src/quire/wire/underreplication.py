"""BookKeeper's texts of replication: marks of ledgers whose bookies are lost, and who holds a lock or is a candidate.

Byte for byte what Java writes. Its parser refuses fields that it does not know, so these say nothing else; what Quire
has to say besides is in `wire/repair_records.py`. Pure; the keys are in `metadata/keys.py`.

Source: BookKeeper source, `ZkLedgerUnderreplicationManager` and `DataFormats.proto`;
tests/vectors/replication_znodes.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message as ProtobufMessage

from quire.core.ids import ENSEMBLE_MAX, BookieId
from quire.wire.bookie_service_info import check_bookie_id
from quire.wire.layout import FieldUse, Message
from quire.wire.proto import replication_pb2 as pb
from quire.wire.records import corrupt

TEXT_BYTES_MAX: Final = 1 << 20
SECONDS_MAX: Final = 2**31 - 1
"""Java reads the delay as an int."""
_DIGITS_MAX: Final = 100
M = TypeVar("M", bound=ProtobufMessage)


@dataclass(frozen=True, slots=True)
class MissingBookies:
    """BookKeeper's mark of one ledger.

    Attributes:
        bookies: those that are lost, in the order in which they were marked; empty where Java marked none.
        marked_ms: wall time of the last marking; None where Java's cluster leaves it out.
    """

    bookies: tuple[BookieId, ...]
    marked_ms: int | None = None

    def merged(self, more: tuple[BookieId, ...], now_ms: int) -> MissingBookies:
        """The same mark with more bookies; itself if it names them all."""
        new = tuple(bookie for bookie in dict.fromkeys(more) if bookie not in self.bookies)
        return MissingBookies((*self.bookies, *new), now_ms) if new else self


def encode_missing(mark: MissingBookies) -> bytes:
    """The value of `underreplication/ledgers/<ledger id>`.

    Raises:
        MisuseError: a name is no bookie's.
    """
    replicas = [check_bookie_id(bookie) for bookie in mark.bookies]
    return _text(pb.UnderreplicatedLedgerFormat(replica=replicas, ctime=mark.marked_ms))


def decode_missing(data: bytes, ledger_id: int) -> MissingBookies:
    """The mark of a ledger.

    Raises:
        CorruptMetadataError: it is no such text.
    """
    where = f"the mark of ledger {ledger_id} in underreplication"
    message = _parsed(pb.UnderreplicatedLedgerFormat, data, where)
    if len(message.replica) > ENSEMBLE_MAX * ENSEMBLE_MAX:
        raise corrupt(where, f"it names {len(message.replica)} bookies")
    bookies = tuple(dict.fromkeys(BookieId(name) for name in message.replica))
    return MissingBookies(bookies, message.ctime if message.HasField("ctime") else None)


def encode_holder(name: str) -> bytes:
    """The value of a lock, or of a candidate: who it is."""
    return _text(pb.HolderFormat(bookieId=name))


def decode_holder(data: bytes, key: str) -> str:
    """Who holds a lock, or is a candidate.

    Raises:
        CorruptMetadataError: it is no such text.
    """
    return _parsed(pb.HolderFormat, data, key).bookieId


def encode_delay(seconds: int) -> bytes:
    """The value of `underreplication/lostBookieRecoveryDelay`."""
    return str(seconds).encode()


def decode_delay(data: bytes) -> int:
    """How long a bookie may be away before its copies are made anew, in seconds.

    Raises:
        CorruptMetadataError: it is no number.
    """
    text = data.decode("ascii", "replace").strip()
    digits = text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
    if not digits or int(text) > SECONDS_MAX:
        raise corrupt(
            "underreplication/lostBookieRecoveryDelay", f"it reads {data[:40]!r}, and not a number of seconds"
        )
    return int(text)


def _text(message: ProtobufMessage) -> bytes:
    return text_format.MessageToString(message).encode()


def _parsed(kind: type[M], data: bytes, where: str) -> M:
    if len(data) > TEXT_BYTES_MAX:
        raise corrupt(where, f"it has {len(data)} bytes")
    try:
        return text_format.Parse(data.decode(), kind())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise corrupt(where, f"it reads {data[:80]!r} ({error})") from error


_MARKER: Final = FieldUse("auditors, Quire's and Java's", "workers, Quire's and Java's")
MISSING_FIELDS: Final = Message(
    "BookKeeper's under-replicated mark of a ledger (text)",
    pb.UnderreplicatedLedgerFormat.DESCRIPTOR,
    _MARKER,
)
HOLDER_FIELDS: Final = Message(
    "Who holds a lock, or is a candidate (text)",
    pb.HolderFormat.DESCRIPTOR,
    FieldUse("workers and auditors", "people"),
)
