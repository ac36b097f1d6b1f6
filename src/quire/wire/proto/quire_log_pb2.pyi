from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogName(_message.Message):
    __slots__ = ("format_version", "log_id")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    log_id: bytes
    def __init__(self, format_version: _Optional[int] = ..., log_id: _Optional[bytes] = ...) -> None: ...

class LogHead(_message.Message):
    __slots__ = ("format_version", "log_id", "name", "settings", "generation", "leader", "start_offset", "dropped_items", "pages", "items", "adoptions", "marks", "intents", "created_ms", "archive", "compacted_below", "marks_dropped", "marks_dropped_ms")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DROPPED_ITEMS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ADOPTIONS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    INTENTS_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_BELOW_FIELD_NUMBER: _ClassVar[int]
    MARKS_DROPPED_FIELD_NUMBER: _ClassVar[int]
    MARKS_DROPPED_MS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    log_id: bytes
    name: str
    settings: LogSettings
    generation: int
    leader: LogLeader
    start_offset: int
    dropped_items: int
    pages: _containers.RepeatedCompositeFieldContainer[LogPageRef]
    items: _containers.RepeatedCompositeFieldContainer[LogItem]
    adoptions: _containers.RepeatedCompositeFieldContainer[LogAdoption]
    marks: _containers.RepeatedCompositeFieldContainer[LogMark]
    intents: _containers.RepeatedCompositeFieldContainer[LogIntent]
    created_ms: int
    archive: str
    compacted_below: int
    marks_dropped: int
    marks_dropped_ms: int
    def __init__(self, format_version: _Optional[int] = ..., log_id: _Optional[bytes] = ..., name: _Optional[str] = ..., settings: _Optional[_Union[LogSettings, _Mapping]] = ..., generation: _Optional[int] = ..., leader: _Optional[_Union[LogLeader, _Mapping]] = ..., start_offset: _Optional[int] = ..., dropped_items: _Optional[int] = ..., pages: _Optional[_Iterable[_Union[LogPageRef, _Mapping]]] = ..., items: _Optional[_Iterable[_Union[LogItem, _Mapping]]] = ..., adoptions: _Optional[_Iterable[_Union[LogAdoption, _Mapping]]] = ..., marks: _Optional[_Iterable[_Union[LogMark, _Mapping]]] = ..., intents: _Optional[_Iterable[_Union[LogIntent, _Mapping]]] = ..., created_ms: _Optional[int] = ..., archive: _Optional[str] = ..., compacted_below: _Optional[int] = ..., marks_dropped: _Optional[int] = ..., marks_dropped_ms: _Optional[int] = ...) -> None: ...

class LogPage(_message.Message):
    __slots__ = ("format_version", "log_id", "level", "items", "children")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    CHILDREN_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    log_id: bytes
    level: int
    items: _containers.RepeatedCompositeFieldContainer[LogItem]
    children: _containers.RepeatedCompositeFieldContainer[LogPageRef]
    def __init__(self, format_version: _Optional[int] = ..., log_id: _Optional[bytes] = ..., level: _Optional[int] = ..., items: _Optional[_Iterable[_Union[LogItem, _Mapping]]] = ..., children: _Optional[_Iterable[_Union[LogPageRef, _Mapping]]] = ...) -> None: ...

class LogItem(_message.Message):
    __slots__ = ("ledger_id", "token", "first_offset", "next_offset", "count", "payload_bytes", "min_time_ms", "max_time_ms", "state", "place", "digest", "format", "flags", "archive")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    token: int
    first_offset: int
    next_offset: int
    count: int
    payload_bytes: int
    min_time_ms: int
    max_time_ms: int
    state: int
    place: int
    digest: int
    format: str
    flags: int
    archive: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., token: _Optional[int] = ..., first_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., count: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., min_time_ms: _Optional[int] = ..., max_time_ms: _Optional[int] = ..., state: _Optional[int] = ..., place: _Optional[int] = ..., digest: _Optional[int] = ..., format: _Optional[str] = ..., flags: _Optional[int] = ..., archive: _Optional[bytes] = ...) -> None: ...

class LogPageRef(_message.Message):
    __slots__ = ("name", "level", "first_offset", "next_offset", "items", "count", "payload_bytes", "min_time_ms", "max_time_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    level: int
    first_offset: int
    next_offset: int
    items: int
    count: int
    payload_bytes: int
    min_time_ms: int
    max_time_ms: int
    def __init__(self, name: _Optional[str] = ..., level: _Optional[int] = ..., first_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., items: _Optional[int] = ..., count: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., min_time_ms: _Optional[int] = ..., max_time_ms: _Optional[int] = ...) -> None: ...

class LogLeader(_message.Message):
    __slots__ = ("epoch", "holder", "host", "adopts")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ADOPTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    holder: str
    host: str
    adopts: bool
    def __init__(self, epoch: _Optional[int] = ..., holder: _Optional[str] = ..., host: _Optional[str] = ..., adopts: bool = ...) -> None: ...

class LogAdoption(_message.Message):
    __slots__ = ("items", "query_id", "batch_id")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[LogItem]
    query_id: str
    batch_id: int
    def __init__(self, items: _Optional[_Iterable[_Union[LogItem, _Mapping]]] = ..., query_id: _Optional[str] = ..., batch_id: _Optional[int] = ...) -> None: ...

class LogMark(_message.Message):
    __slots__ = ("query_id", "batch_id", "time_ms", "incarnation", "fingerprint")
    QUERY_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    query_id: str
    batch_id: int
    time_ms: int
    incarnation: str
    fingerprint: LogFingerprint
    def __init__(self, query_id: _Optional[str] = ..., batch_id: _Optional[int] = ..., time_ms: _Optional[int] = ..., incarnation: _Optional[str] = ..., fingerprint: _Optional[_Union[LogFingerprint, _Mapping]] = ...) -> None: ...

class LogFingerprint(_message.Message):
    __slots__ = ("batch_id", "digest", "rows", "files")
    BATCH_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    batch_id: int
    digest: bytes
    rows: int
    files: bytes
    def __init__(self, batch_id: _Optional[int] = ..., digest: _Optional[bytes] = ..., rows: _Optional[int] = ..., files: _Optional[bytes] = ...) -> None: ...

class LogIntent(_message.Message):
    __slots__ = ("kind", "before", "since", "items", "pages", "created_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    kind: int
    before: int
    since: int
    items: _containers.RepeatedCompositeFieldContainer[LogItem]
    pages: _containers.RepeatedCompositeFieldContainer[LogPageRef]
    created_ms: int
    def __init__(self, kind: _Optional[int] = ..., before: _Optional[int] = ..., since: _Optional[int] = ..., items: _Optional[_Iterable[_Union[LogItem, _Mapping]]] = ..., pages: _Optional[_Iterable[_Union[LogPageRef, _Mapping]]] = ..., created_ms: _Optional[int] = ...) -> None: ...

class LogSettings(_message.Message):
    __slots__ = ("ensemble_size", "write_quorum", "ack_quorum", "digest", "min_present")
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MIN_PRESENT_FIELD_NUMBER: _ClassVar[int]
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest: int
    min_present: int
    def __init__(self, ensemble_size: _Optional[int] = ..., write_quorum: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., digest: _Optional[int] = ..., min_present: _Optional[int] = ...) -> None: ...

class LogCursor(_message.Message):
    __slots__ = ("format_version", "owner", "name", "first_offset", "offset", "hold", "holder", "created_ms", "moved_ms")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    MOVED_MS_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    owner: str
    name: str
    first_offset: int
    offset: int
    hold: bool
    holder: str
    created_ms: int
    moved_ms: int
    def __init__(self, format_version: _Optional[int] = ..., owner: _Optional[str] = ..., name: _Optional[str] = ..., first_offset: _Optional[int] = ..., offset: _Optional[int] = ..., hold: bool = ..., holder: _Optional[str] = ..., created_ms: _Optional[int] = ..., moved_ms: _Optional[int] = ...) -> None: ...
