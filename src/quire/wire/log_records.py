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
from quire.wire.records import message_of, part_of, unknown_of, with_unknown

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
    message = message_of(
        pb.LogHead,
        head,
        format_version=FORMAT_VERSION,
        settings=message_of(pb.LogSettings, head.settings),
        leader=message_of(pb.LogLeader, head.leader),
        pages=map(_page_ref, head.pages),
        items=map(_item, head.items),
        adoptions=[message_of(pb.LogAdoption, each, items=map(_item, each.items)) for each in head.adoptions],
        intents=map(_intent, head.intents),
        marks=map(_position, head.sink_positions),
        marks_dropped=head.positions_dropped,
        marks_dropped_ms=head.positions_dropped_ms,
    )
    return message.SerializeToString(deterministic=True)


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
    return part_of(
        LogHead,
        message,
        settings=part_of(LogSettings, message.settings),
        leader=part_of(Leader, message.leader),
        pages=tuple(map(_read_page_ref, message.pages)),
        items=_read_items(message.items, where),
        adoptions=tuple(
            part_of(Adoption, each, items=_read_items(each.items, where)) for each in message.adoptions
        ),
        sink_positions=tuple(
            part_of(SinkPosition, each, fingerprint=_read_fingerprint(each)) for each in message.marks
        ),
        intents=tuple(_read_intent(each, where) for each in message.intents),
        positions_dropped=message.marks_dropped,
        positions_dropped_ms=message.marks_dropped_ms,
    )


# --- pages ----------------------------------------------------------------------------------------------------


def encode_page(page: LogPage) -> bytes:
    """The record `log-pages/<log id>/<name>`."""
    items, children = map(_item, page.items), map(_page_ref, page.children)
    message = message_of(pb.LogPage, page, format_version=FORMAT_VERSION, items=items, children=children)
    return message.SerializeToString(deterministic=True)


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
    children = tuple(map(_read_page_ref, message.children))
    return part_of(LogPage, message, items=_read_items(message.items, where), children=children)


# --- parts ----------------------------------------------------------------------------------------------------


def _position(position: SinkPosition) -> pb.LogMark:
    found = position.fingerprint
    return message_of(
        pb.LogMark, position, fingerprint=None if found is None else message_of(pb.LogFingerprint, found)
    )


def _read_fingerprint(position: pb.LogMark) -> Fingerprint | None:
    """As it stands: whether it can be used is the business of who compares it, and of no other reader of the log."""
    return part_of(Fingerprint, position.fingerprint) if position.HasField("fingerprint") else None


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
    items, pages = map(_item, intent.items), map(_page_ref, intent.pages)
    return message_of(pb.LogIntent, intent, items=items, pages=pages)


def _read_intent(message: pb.LogIntent, where: str) -> Intent:
    if message.kind not in IntentKind._value2member_map_:
        msg = f"{where} holds an intent of kind {message.kind}, unknown to this program: use a newer one"
        raise CorruptMetadataError(msg)
    items, pages = _read_items(message.items, where), tuple(map(_read_page_ref, message.pages))
    return part_of(Intent, message, kind=IntentKind(message.kind), items=items, pages=pages)


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
