"""The fixed layouts of what follows the headers of the native protocol's frames, field by field.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

from quire.wire.layout import Field, FieldUse, Layout

_ASKED = FieldUse("client", "bookie")
_ANSWERED = FieldUse("bookie", "client")
_FENCES = FieldUse("client of a stream whose terms only fence", "bookie")

READ_FIELDS = Layout(
    "Body of READ",
    [
        Field("first", "q", _ASKED),
        Field("last", "q", _ASKED),
        Field("bytes at most", "I", _ASKED),
        Field(
            "origin term",
            "Q",
            FieldUse("client: 2^64-1, 2^64-2 for any, or that of a stream's entries", "bookie"),
        ),
    ],
)
LONG_POLL_FIELDS = Layout(
    "Body of LONG_POLL",
    [
        Field("previous LAC", "q", _ASKED),
        Field("first", "q", _ASKED),
        Field("last", "q", _ASKED),
        Field("bytes at most", "I", _ASKED),
        Field("wait in ms", "I", _ASKED),
        Field(
            "origin term",
            "Q",
            FieldUse("client: 0, 2^64-2 for any, or that of a stream's entries", "bookie"),
        ),
    ],
)
LIST_FIELDS = Layout(
    "Body of LIST_ENTRIES",
    [Field("from first id", "q", _ASKED), Field("intervals at most", "I", _ASKED)],
)
CLEAR_LIMBO_FIELDS = Layout("Body of CLEAR_LIMBO", [Field("LSN of the limbo", "Q", _ASKED)])
TRUNCATE_FIELDS = Layout(
    "Body of TRUNCATE",
    [
        Field("first id that is deleted", "q", _FENCES),
        Field("last id that is deleted", "q", _FENCES),
        Field("origin term that stays, 0: the sender's and above", "Q", _FENCES),
    ],
)
LACS_FIELDS = Layout("Body of WRITE_LACS, then its items", [Field("count", "I", _ASKED)])
LACS_ITEM_FIELDS = Layout(
    "Item of WRITE_LACS, then its explicit LAC body",
    [
        Field("ledger id", "q", _ASKED),
        Field("ledger token", "Q", _ASKED),
        Field("LAC", "q", _ASKED),
        Field("LAC's term", "Q", _ASKED),
        Field("digest type", "B", _ASKED),
        Field("key", "20s", _ASKED),
        Field("bytes of the explicit LAC body", "H", _ASKED),
    ],
)
LACS_ANSWER_FIELDS = Layout(
    "Answer to WRITE_LACS, then those that were refused", [Field("count", "I", _ANSWERED)]
)
LACS_REFUSED_FIELDS = Layout(
    "Refused item of an answer to WRITE_LACS",
    [Field("ledger id", "q", _ANSWERED), Field("answer code", "H", _ANSWERED)],
)
READ_ANSWER_FIELDS = Layout(
    "Answer to READ or LONG_POLL, then its intervals",
    [
        Field("conclusive through", "q", _ANSWERED),
        Field("LAC's term", "Q", _ANSWERED),
        Field("count of unknown intervals", "I", _ANSWERED),
        Field("count of damaged intervals", "I", _ANSWERED),
    ],
)
INTERVAL_FIELDS = Layout(
    "Unknown or damaged interval", [Field("first", "q", _ANSWERED), Field("last", "q", _ANSWERED)]
)
LOCATION_FIELDS = Layout(
    "Location of a run, then the text of its file",
    [
        Field("offset", "Q", _ANSWERED),
        Field("size", "I", _ANSWERED),
        Field("seed", "I", _ANSWERED),
        Field("origin term", "Q", _ANSWERED),
    ],
)
LAC_FIELDS = Layout(
    "Answer to READ_LAC, after its two parts",
    [Field("LAC's term", "Q", _ANSWERED), Field("LAFR", "q", _ANSWERED)],
)
PAGE_FIELDS = Layout(
    "Answer to LIST_ENTRIES, then its intervals",
    [Field("next", "q", _ANSWERED), Field("count", "I", _ANSWERED)],
)
HELD_FIELDS = Layout(
    "Interval of LIST_ENTRIES",
    [
        Field("first", "q", _ANSWERED),
        Field("last", "q", _ANSWERED),
        Field("period", "B", _ANSWERED),
        Field("stripes", "Q", _ANSWERED),
        Field("origin term", "Q", _ANSWERED),
    ],
)
