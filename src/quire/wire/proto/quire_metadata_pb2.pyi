from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryRange(_message.Message):
    __slots__ = ("first", "last", "period", "residues")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    RESIDUES_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    period: int
    residues: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., period: _Optional[int] = ..., residues: _Optional[int] = ...) -> None: ...

class BookieHoles(_message.Message):
    __slots__ = ("bookie", "ranges")
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    bookie: str
    ranges: _containers.RepeatedCompositeFieldContainer[EntryRange]
    def __init__(self, bookie: _Optional[str] = ..., ranges: _Optional[_Iterable[_Union[EntryRange, _Mapping]]] = ...) -> None: ...

class LedgerHoles(_message.Message):
    __slots__ = ("format_version", "bookies")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOKIES_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    bookies: _containers.RepeatedCompositeFieldContainer[BookieHoles]
    def __init__(self, format_version: _Optional[int] = ..., bookies: _Optional[_Iterable[_Union[BookieHoles, _Mapping]]] = ...) -> None: ...

class AcceptedLoss(_message.Message):
    __slots__ = ("ranges", "accepted_ms", "accepted_by", "gone")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_MS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[EntryRange]
    accepted_ms: int
    accepted_by: str
    gone: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ranges: _Optional[_Iterable[_Union[EntryRange, _Mapping]]] = ..., accepted_ms: _Optional[int] = ..., accepted_by: _Optional[str] = ..., gone: _Optional[_Iterable[str]] = ...) -> None: ...

class LedgerLosses(_message.Message):
    __slots__ = ("format_version", "losses")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    losses: _containers.RepeatedCompositeFieldContainer[AcceptedLoss]
    def __init__(self, format_version: _Optional[int] = ..., losses: _Optional[_Iterable[_Union[AcceptedLoss, _Mapping]]] = ...) -> None: ...

class LedgerNotes(_message.Message):
    __slots__ = ("format_version", "ledger_id", "holes", "lost")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    ledger_id: int
    holes: LedgerHoles
    lost: LedgerLosses
    def __init__(self, format_version: _Optional[int] = ..., ledger_id: _Optional[int] = ..., holes: _Optional[_Union[LedgerHoles, _Mapping]] = ..., lost: _Optional[_Union[LedgerLosses, _Mapping]] = ...) -> None: ...

class Tombstone(_message.Message):
    __slots__ = ("format_version", "ledger_id", "token", "deleted_ms", "record_version", "by_hand")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DELETED_MS_FIELD_NUMBER: _ClassVar[int]
    RECORD_VERSION_FIELD_NUMBER: _ClassVar[int]
    BY_HAND_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    ledger_id: int
    token: int
    deleted_ms: int
    record_version: int
    by_hand: bool
    def __init__(self, format_version: _Optional[int] = ..., ledger_id: _Optional[int] = ..., token: _Optional[int] = ..., deleted_ms: _Optional[int] = ..., record_version: _Optional[int] = ..., by_hand: bool = ...) -> None: ...

class Watermark(_message.Message):
    __slots__ = ("format_version", "bookie", "revision", "instance", "generation")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    bookie: str
    revision: int
    instance: str
    generation: int
    def __init__(self, format_version: _Optional[int] = ..., bookie: _Optional[str] = ..., revision: _Optional[int] = ..., instance: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class Boot(_message.Message):
    __slots__ = ("format_version", "bookie", "boot", "durable_lsn", "marker_inode", "marker_changed_ns", "clean", "owner")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    DURABLE_LSN_FIELD_NUMBER: _ClassVar[int]
    MARKER_INODE_FIELD_NUMBER: _ClassVar[int]
    MARKER_CHANGED_NS_FIELD_NUMBER: _ClassVar[int]
    CLEAN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    bookie: str
    boot: int
    durable_lsn: int
    marker_inode: int
    marker_changed_ns: int
    clean: bool
    owner: int
    def __init__(self, format_version: _Optional[int] = ..., bookie: _Optional[str] = ..., boot: _Optional[int] = ..., durable_lsn: _Optional[int] = ..., marker_inode: _Optional[int] = ..., marker_changed_ns: _Optional[int] = ..., clean: bool = ..., owner: _Optional[int] = ...) -> None: ...

class Passes(_message.Message):
    __slots__ = ("format_version", "bookie", "passes", "own", "held", "accepted", "chain")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    bookie: str
    passes: int
    own: int
    held: str
    accepted: int
    chain: int
    def __init__(self, format_version: _Optional[int] = ..., bookie: _Optional[str] = ..., passes: _Optional[int] = ..., own: _Optional[int] = ..., held: _Optional[str] = ..., accepted: _Optional[int] = ..., chain: _Optional[int] = ...) -> None: ...

class StreamFragment(_message.Message):
    __slots__ = ("first_entry", "ensemble")
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    first_entry: int
    ensemble: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first_entry: _Optional[int] = ..., ensemble: _Optional[_Iterable[str]] = ...) -> None: ...

class StreamRange(_message.Message):
    __slots__ = ("term", "first_entry")
    TERM_FIELD_NUMBER: _ClassVar[int]
    FIRST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    term: int
    first_entry: int
    def __init__(self, term: _Optional[int] = ..., first_entry: _Optional[int] = ...) -> None: ...

class CustomValue(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("format_version", "stream_id", "ensemble_size", "write_quorum", "ack_quorum", "digest_type", "password", "state", "fragments", "last_entry", "length", "created_ms", "custom", "creation_token", "term", "ranges", "start", "first_length", "owner", "mode")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    DIGEST_TYPE_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FRAGMENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ENTRY_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    CREATION_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FIRST_LENGTH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    stream_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: int
    password: bytes
    state: int
    fragments: _containers.RepeatedCompositeFieldContainer[StreamFragment]
    last_entry: int
    length: int
    created_ms: int
    custom: _containers.RepeatedCompositeFieldContainer[CustomValue]
    creation_token: int
    term: int
    ranges: _containers.RepeatedCompositeFieldContainer[StreamRange]
    start: int
    first_length: int
    owner: int
    mode: int
    def __init__(self, format_version: _Optional[int] = ..., stream_id: _Optional[int] = ..., ensemble_size: _Optional[int] = ..., write_quorum: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., digest_type: _Optional[int] = ..., password: _Optional[bytes] = ..., state: _Optional[int] = ..., fragments: _Optional[_Iterable[_Union[StreamFragment, _Mapping]]] = ..., last_entry: _Optional[int] = ..., length: _Optional[int] = ..., created_ms: _Optional[int] = ..., custom: _Optional[_Iterable[_Union[CustomValue, _Mapping]]] = ..., creation_token: _Optional[int] = ..., term: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[StreamRange, _Mapping]]] = ..., start: _Optional[int] = ..., first_length: _Optional[int] = ..., owner: _Optional[int] = ..., mode: _Optional[int] = ...) -> None: ...

class StreamName(_message.Message):
    __slots__ = ("format_version", "stream_id")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    stream_id: int
    def __init__(self, format_version: _Optional[int] = ..., stream_id: _Optional[int] = ...) -> None: ...

class RepairMark(_message.Message):
    __slots__ = ("reason", "bookie", "entries", "record_version", "seen_by", "seen_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    RECORD_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEEN_BY_FIELD_NUMBER: _ClassVar[int]
    SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    reason: int
    bookie: str
    entries: EntryRange
    record_version: int
    seen_by: str
    seen_ms: int
    def __init__(self, reason: _Optional[int] = ..., bookie: _Optional[str] = ..., entries: _Optional[_Union[EntryRange, _Mapping]] = ..., record_version: _Optional[int] = ..., seen_by: _Optional[str] = ..., seen_ms: _Optional[int] = ...) -> None: ...

class RepairAttempts(_message.Message):
    __slots__ = ("count", "waits", "why", "tried_by", "tried_ms")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    TRIED_BY_FIELD_NUMBER: _ClassVar[int]
    TRIED_MS_FIELD_NUMBER: _ClassVar[int]
    count: int
    waits: int
    why: str
    tried_by: str
    tried_ms: int
    def __init__(self, count: _Optional[int] = ..., waits: _Optional[int] = ..., why: _Optional[str] = ..., tried_by: _Optional[str] = ..., tried_ms: _Optional[int] = ...) -> None: ...

class LedgerRepairs(_message.Message):
    __slots__ = ("format_version", "ledger_id", "marks", "attempts")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    ledger_id: int
    marks: _containers.RepeatedCompositeFieldContainer[RepairMark]
    attempts: RepairAttempts
    def __init__(self, format_version: _Optional[int] = ..., ledger_id: _Optional[int] = ..., marks: _Optional[_Iterable[_Union[RepairMark, _Mapping]]] = ..., attempts: _Optional[_Union[RepairAttempts, _Mapping]] = ...) -> None: ...

class RepairWorker(_message.Message):
    __slots__ = ("format_version", "name", "ledgers", "bytes", "bytes_per_s", "ledgers_per_hour")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    LEDGERS_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    name: str
    ledgers: int
    bytes: int
    bytes_per_s: int
    ledgers_per_hour: int
    def __init__(self, format_version: _Optional[int] = ..., name: _Optional[str] = ..., ledgers: _Optional[int] = ..., bytes: _Optional[int] = ..., bytes_per_s: _Optional[int] = ..., ledgers_per_hour: _Optional[int] = ...) -> None: ...

class Away(_message.Message):
    __slots__ = ("format_version", "bookie", "seconds", "counted_by")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_BY_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    bookie: str
    seconds: int
    counted_by: str
    def __init__(self, format_version: _Optional[int] = ..., bookie: _Optional[str] = ..., seconds: _Optional[int] = ..., counted_by: _Optional[str] = ...) -> None: ...
