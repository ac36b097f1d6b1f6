"""A log's records as bytes: the name, the head, its pages; protobuf, every unknown field carried over.

Pages are named by what is in them, so two leaders that make the same page make one record, and a page under a name
never changes. The module must not know stores. Prose: `docs/formats/log-list.md`.

Source: docs/formats/log-list.md; docs/decisions/017-leader-epoch.md; docs/decisions/018-log-ids.md;
docs/decisions/019-paged-list.md.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from quire.core.errors import CorruptMetadataError
from quire.core.ids import LedgerId
from quire.core.log.fingerprints import Fingerprint
from quire.core.log.list import (
    Adoption,
    Intent,
    IntentKind,
    ItemLocation,
    ItemState,
    Leader,
    LogHead,
    LogItem,
    LogPage,
    LogSettings,
    PageRef,
    SinkPosition,
)
from quire.wire.proto import quire_log_pb2 as pb
from quire.wire.records import unknown_of, with_unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT_VERSION: Final = 1
LOG_ID_BYTES: Final = 16
PAGE_BYTES_MAX: Final = 64 * 1024

_M = TypeVar("_M", bound=Message)


# --- name -----------------------------------------------------------------------------------------------------


def encode_name(log_id: bytes) -> bytes:
    """The record `log-names/<name>`."""
    return pb.LogName(format_version=FORMAT_VERSION, log_id=log_id).SerializeToString(deterministic=True)


def decode_name(record: bytes, name: str) -> bytes:
    """The log id that a name stands for.

    Raises:
        CorruptMetadataError: not such a record, or of a later version.
    """
    message = _parse(pb.LogName(), record, f"the name record of log {name!r}")
    _check(message.format_version, message.log_id, f"the name record of log {name!r}")
    return message.log_id


# --- head -----------------------------------------------------------------------------------------------------


def encode_head(head: LogHead) -> bytes:
    """The record `logs/<log id>`."""
    message = pb.LogHead(
        format_version=FORMAT_VERSION,
        log_id=head.log_id,
        name=head.name,
        generation=head.generation,
        start_offset=head.start_offset,
        dropped_items=head.dropped_items,
        created_ms=head.created_ms,
        archive=head.archive,
        compacted_below=head.compacted_below,
        marks_dropped=head.positions_dropped,
        marks_dropped_ms=head.positions_dropped_ms,
        pages=map(_page_ref, head.pages),
        items=map(_item, head.items),
        intents=map(_intent, head.intents),
    )
    settings, leader = head.settings, head.leader
    message.settings.CopyFrom(
        with_unknown(
            pb.LogSettings(
                ensemble_size=settings.ensemble_size,
                write_quorum=settings.write_quorum,
                ack_quorum=settings.ack_quorum,
                digest=settings.digest,
                min_present=settings.min_present,
            ),
            settings.unknown,
        )
    )
    message.leader.CopyFrom(
        with_unknown(
            pb.LogLeader(epoch=leader.epoch, holder=leader.holder, host=leader.host, adopts=leader.adopts),
            leader.unknown,
        )
    )
    for adoption in head.adoptions:
        message.adoptions.append(
            with_unknown(
                pb.LogAdoption(
                    items=map(_item, adoption.items), query_id=adoption.query_id, batch_id=adoption.batch_id
                ),
                adoption.unknown,
            )
        )
    for position in head.sink_positions:
        message.marks.append(_position(position))
    return with_unknown(message, head.unknown).SerializeToString(deterministic=True)


def decode_head(record: bytes, log_id: bytes) -> LogHead:
    """The head that a record holds.

    Raises:
        CorruptMetadataError: not such a record, of a later version, of another log, or impossible.
    """
    return parse_head(record, log_id).checked()


def parse_head(record: bytes, log_id: bytes) -> LogHead:
    """What a record says, possible or not: for showing it; `decode_head` is for working with it.

    Raises:
        CorruptMetadataError: not such a record, of a later version, or of another log.
    """
    where = f"the head record of log {log_id.hex()}"
    message = _parse(pb.LogHead(), record, where)
    _check(message.format_version, message.log_id, where)
    if message.log_id != log_id:
        msg = f"{where} says that it belongs to log {message.log_id.hex()}"
        raise CorruptMetadataError(msg, log_id=log_id.hex())
    settings, leader = message.settings, message.leader
    return LogHead(
        message.log_id,
        message.name,
        LogSettings(
            settings.ensemble_size,
            settings.write_quorum,
            settings.ack_quorum,
            settings.digest,
            unknown_of(settings),
            settings.min_present,
        ),
        message.generation,
        Leader(leader.epoch, leader.holder, leader.host, leader.adopts, unknown_of(leader)),
        message.start_offset,
        message.dropped_items,
        tuple(map(_read_page_ref, message.pages)),
        _read_items(message.items, where),
        tuple(
            Adoption(_read_items(each.items, where), each.query_id, each.batch_id, unknown_of(each))
            for each in message.adoptions
        ),
        tuple(
            SinkPosition(
                each.query_id,
                each.batch_id,
                each.time_ms,
                each.incarnation,
                unknown_of(each),
                _read_fingerprint(each),
            )
            for each in message.marks
        ),
        tuple(_read_intent(each, where) for each in message.intents),
        message.created_ms,
        message.marks_dropped,
        message.marks_dropped_ms,
        unknown_of(message),
        message.archive,
        message.compacted_below,
    )


# --- pages ----------------------------------------------------------------------------------------------------


def encode_page(page: LogPage) -> bytes:
    """The record `log-pages/<log id>/<name>`."""
    message = pb.LogPage(
        format_version=FORMAT_VERSION,
        log_id=page.log_id,
        level=page.level,
        items=map(_item, page.items),
        children=map(_page_ref, page.children),
    )
    return with_unknown(message, page.unknown).SerializeToString(deterministic=True)


def page_name(page: LogPage) -> str:
    """The name of a page: the hash of its bytes, which hold the log's id."""
    return name_of_bytes(encode_page(page))


def name_of_bytes(record: bytes) -> str:
    """The name under which a page's record is stored."""
    return hashlib.blake2b(record, digest_size=16).hexdigest()


def decode_page(record: bytes, log_id: bytes, name: str) -> LogPage:
    """The page that a record holds.

    Raises:
        CorruptMetadataError: it is not the page of that name and log.
    """
    where = f"page {name} of log {log_id.hex()}"
    if name_of_bytes(record) != name:
        msg = f"{where} holds other bytes than its name stands for"
        raise CorruptMetadataError(msg, log_id=log_id.hex(), page=name)
    message = _parse(pb.LogPage(), record, where)
    _check(message.format_version, message.log_id, where)
    return LogPage(
        message.log_id,
        message.level,
        _read_items(message.items, where),
        tuple(map(_read_page_ref, message.children)),
        unknown_of(message),
    )


# --- parts ----------------------------------------------------------------------------------------------------


def _position(position: SinkPosition) -> pb.LogMark:
    message = pb.LogMark(
        query_id=position.query_id,
        batch_id=position.batch_id,
        time_ms=position.time_ms,
        incarnation=position.incarnation,
    )
    found = position.fingerprint
    if found is not None:
        message.fingerprint.CopyFrom(
            with_unknown(
                pb.LogFingerprint(
                    batch_id=found.batch_id, digest=found.digest, rows=found.rows, files=found.files
                ),
                found.unknown,
            )
        )
    return with_unknown(message, position.unknown)


def _read_fingerprint(position: pb.LogMark) -> Fingerprint | None:
    """As it stands: whether it can be used is the business of who compares it, and of no other reader of the log."""
    if not position.HasField("fingerprint"):
        return None
    found = position.fingerprint
    return Fingerprint(found.batch_id, found.digest, found.rows, found.files, unknown_of(found))


def _item(item: LogItem) -> pb.LogItem:
    message = pb.LogItem(
        ledger_id=item.ledger_id,
        token=item.token,
        first_offset=item.first_offset,
        next_offset=item.next_offset,
        count=item.count,
        payload_bytes=item.payload_bytes,
        min_time_ms=item.min_time_ms,
        max_time_ms=item.max_time_ms,
        state=item.state,
        place=item.location,
        digest=item.digest,
        format=item.format,
        flags=item.flags,
        archive=item.archive,
    )
    return with_unknown(message, item.unknown)


def _read_items(messages: Iterable[pb.LogItem], where: str) -> tuple[LogItem, ...]:
    try:
        return tuple(
            LogItem(
                LedgerId(each.ledger_id),
                each.token,
                _optional(each, "first_offset"),
                _optional(each, "next_offset"),
                each.count,
                each.payload_bytes,
                _optional(each, "min_time_ms"),
                _optional(each, "max_time_ms"),
                ItemState(each.state),
                ItemLocation(each.place),
                each.digest,
                each.format,
                each.flags,
                unknown_of(each),
                each.archive,
            )
            for each in messages
        )
    except ValueError as error:
        # A state or location of the future cannot be guessed at: to read on would be to misread.
        msg = f"{where} holds an item that this program does not understand ({error}): use a newer one"
        raise CorruptMetadataError(msg) from error


def _page_ref(page: PageRef) -> pb.LogPageRef:
    message = pb.LogPageRef(
        name=page.name,
        level=page.level,
        first_offset=page.first_offset,
        next_offset=page.next_offset,
        items=page.items,
        count=page.count,
        payload_bytes=page.payload_bytes,
        min_time_ms=page.min_time_ms,
        max_time_ms=page.max_time_ms,
    )
    return with_unknown(message, page.unknown)


def _read_page_ref(message: pb.LogPageRef) -> PageRef:
    return PageRef(
        message.name,
        message.level,
        message.first_offset,
        message.next_offset,
        message.items,
        message.count,
        message.payload_bytes,
        _optional(message, "min_time_ms"),
        _optional(message, "max_time_ms"),
        unknown_of(message),
    )


def _intent(intent: Intent) -> pb.LogIntent:
    message = pb.LogIntent(
        kind=intent.kind,
        before=intent.before,
        since=intent.since,
        items=map(_item, intent.items),
        pages=map(_page_ref, intent.pages),
        created_ms=intent.created_ms,
    )
    return with_unknown(message, intent.unknown)


def _read_intent(message: pb.LogIntent, where: str) -> Intent:
    if message.kind not in IntentKind._value2member_map_:
        msg = f"{where} holds an intent of kind {message.kind}, unknown to this program: use a newer one"
        raise CorruptMetadataError(msg)
    return Intent(
        IntentKind(message.kind),
        message.before,
        message.since,
        _read_items(message.items, where),
        tuple(map(_read_page_ref, message.pages)),
        message.created_ms,
        unknown_of(message),
    )


def _optional(message: Message, name: str) -> int | None:
    if not message.HasField(name):
        return None
    value: int = getattr(message, name)
    return value


def _parse(message: _M, record: bytes, where: str) -> _M:
    try:
        message.MergeFromString(record)
    except DecodeError as error:
        msg = f"{where} cannot be read: {error}. Restore it from a copy of the metadata store"
        raise CorruptMetadataError(msg) from error
    return message


def _check(version: int, log_id: bytes, where: str) -> None:
    if version != FORMAT_VERSION:
        msg = f"{where} has format version {version}, this program reads {FORMAT_VERSION}: use a newer one"
        raise CorruptMetadataError(msg)
    if len(log_id) != LOG_ID_BYTES:
        msg = f"{where} names a log id of {len(log_id)} bytes, not {LOG_ID_BYTES}"
        raise CorruptMetadataError(msg)
