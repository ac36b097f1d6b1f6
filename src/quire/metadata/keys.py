"""The keys of what Quire keeps beside logs and BookKeeper's own records, and the list of all keys.

None lies under BookKeeper's paths in ZooKeeper: whatever stands under its `cookies` Java's auditor takes for a bookie.

Source: `docs/formats/metadata.md`, "Keys"; `metadata/zookeeper_paths.py` has the paths.
"""

from __future__ import annotations

from typing import Final

from quire.core.errors import MisuseError
from quire.core.ids import ID_MAX
from quire.metadata.store import check_key
from quire.wire.bookie_service_info import check_bookie_id
from quire.wire.layout import IGNORES, FieldUse, Names

LEDGER_NOTES: Final = "ledger-notes/"
TOMBSTONES: Final = "tombstones/"
WATERMARKS: Final = "watermarks/"
BOOTS: Final = "boots/"
PASSES: Final = "passes/"
STREAMS: Final = "streams/"
STREAM_NAMES: Final = "stream-names/"
LEDGER_IDS_ABOVE: Final = "ledger-ids/above"


def ledger_notes_key(ledger_id: int) -> str:
    """Of the notes of a ledger whose record has no custom metadata."""
    return LEDGER_NOTES + _digits(ledger_id)


def tombstone_key(ledger_id: int) -> str:
    """Of the tombstone of a ledger that was deleted."""
    return TOMBSTONES + _digits(ledger_id)


def watermark_key(bookie_id: str) -> str:
    """Of a bookie's watermark."""
    return check_key(WATERMARKS + check_bookie_id(bookie_id))


def boot_key(bookie_id: str) -> str:
    """Of a bookie's boot record."""
    return check_key(BOOTS + check_bookie_id(bookie_id))


def passes_key(bookie_id: str) -> str:
    """Of the pass counter of a bookie's collector."""
    return check_key(PASSES + check_bookie_id(bookie_id))


def stream_key(stream_id: int) -> str:
    """Of a stream's record; keys sort like their ids."""
    return STREAMS + _digits(stream_id)


def stream_name_key(name: str) -> str:
    """Of a stream's name.

    Raises:
        MisuseError: the name cannot be a key.
    """
    return check_key(STREAM_NAMES + name)


def _digits(number: int) -> str:
    if not 0 <= number <= ID_MAX:
        raise MisuseError(f"{number} is no ledger id: they go from 0 to {ID_MAX}", ledger_id=number)
    return f"{number:019d}"


_LATER: Final = FieldUse("nobody yet", "nobody yet", "2", IGNORES)
KEYS: Final = Names(
    "Keys of the metadata store",
    {
        "ledgers/<19 digits>": ("the ledger's record", FieldUse("writers, recoverers, repair", "everyone")),
        "bookies/available/<bookie>": ("a registration: takes entries", FieldUse("the bookie", "everyone")),
        "bookies/readonly/<bookie>": ("a registration: serves them only", FieldUse("the bookie", "everyone")),
        "cookies/<bookie>": (
            "the cookie, as in the bookie's directory",
            FieldUse("the bookie", "the bookie; operators"),
        ),
        "elections/<name>/<19 digits>": ("a registration: a candidate", FieldUse("candidates", "candidates")),
        "log-names/<name>": ("a log's id", FieldUse("whoever makes the log", "clients of logs")),
        "logs/<log id>": ("a log's head", FieldUse("the log's leader, sinks, operators", "clients of logs")),
        "log-pages/<log id>/<page>": (
            "a page of a log's list",
            FieldUse("the log's leader", "clients of logs"),
        ),
        "log-cursors/<owner>/<name>": ("a named position", FieldUse("readers", "readers; truncation")),
        f"{LEDGER_NOTES}<19 digits>": (
            "holes and accepted losses of a ledger whose record has format 1",
            FieldUse("whoever writes notes, in one transaction with the record", "the same", "2", IGNORES),
        ),
        f"{TOMBSTONES}<19 digits>": (
            "of a deleted ledger",
            FieldUse(
                "whoever deletes the ledger, in one transaction with the record", "collectors", "2", IGNORES
            ),
        ),
        f"{WATERMARKS}<bookie>": (
            "what a bookie has dropped",
            FieldUse("the bookie's collector", "whoever ends tombstones", "2", IGNORES),
        ),
        f"{BOOTS}<bookie>": (
            "how far a bookie's directory is known to be",
            FieldUse(
                "the bookie", "the bookie at its start, and before it goes on after holding", "2", IGNORES
            ),
        ),
        f"{PASSES}<bookie>": (
            "passes of a bookie's collector",
            FieldUse("the bookie's collector; operators", "the same", "2", IGNORES),
        ),
        LEDGER_IDS_ABOVE: (
            "later ledger ids are above this number",
            FieldUse(
                "whoever raises the ids; not in memory", "whoever has ids ready; in etcd all", "2", IGNORES
            ),
        ),
        f"{STREAMS}<19 digits>": ("a stream's record", _LATER),
        f"{STREAM_NAMES}<name>": ("a stream's id", _LATER),
    },
)
