"""The keys of what Quire keeps besides logs and BookKeeper's own records, of under-replicated marks, and the list of all keys.

In ZooKeeper only those that begin with `underreplication/` lie under BookKeeper's paths, because they are BookKeeper's:
Java's auditor takes every key under its `cookies` for a bookie.

Source: `docs/formats/metadata.md`, "Keys"; `metadata/zookeeper/paths.py` has the paths.
"""

from __future__ import annotations

from typing import Final

from quire.core.errors import MisuseError
from quire.core.ids import ID_MAX
from quire.metadata.store import ID_DIGITS, KEY_LENGTH_MAX, check_key, id_key
from quire.wire.bookie_service_info import check_bookie_id
from quire.wire.layout import FieldUse, NamedValues

LEDGERS: Final = "ledgers/"
LEDGER_NOTES: Final = "ledger-notes/"
TOMBSTONES: Final = "tombstones/"
WATERMARKS: Final = "watermarks/"
BOOTS: Final = "boots/"
PASSES: Final = "passes/"
STREAMS: Final = "streams/"
STREAM_NAMES: Final = "stream-names/"
HEALTH: Final = "health/write"
LEDGER_IDS_ABOVE: Final = "ledger-ids/above"
REPAIRS: Final = "repairs/"
AUDIT_OF_COPIES: Final = "audit/copies"
AWAY: Final = "away/"
READ_ONLY_FOR: Final = "read-only-for/"
WORKERS: Final = "repair-workers/"
UNDERREPLICATION: Final = "underreplication/"
MISSING: Final = f"{UNDERREPLICATION}ledgers/"
LOCKS: Final = f"{UNDERREPLICATION}locks/"
AUDITORS: Final = f"{UNDERREPLICATION}auditorelection/"
DISABLE: Final = f"{UNDERREPLICATION}disable"
LOST_DELAY: Final = f"{UNDERREPLICATION}lostBookieRecoveryDelay"


def named_key(folder: str, name: str, what: str) -> str:
    """The key of something that users name.

    Args:
        folder: the key's first part, with its slash.
        name: the rest.
        what: of what it is the name, as `a log`.

    Raises:
        MisuseError: the name cannot be the rest of a key, in the words of `what`.
    """
    try:
        return check_key(folder + name)
    except MisuseError as error:
        longest = KEY_LENGTH_MAX - len(folder)
        raise MisuseError(
            f"{name[:80]!r} cannot be {what}'s name: 1 to {longest} printable characters, in parts between single "
            "slashes, no part . or ..",
            **error.ids,
        ) from None


def ledger_notes_key(ledger_id: int) -> str:
    """Of the notes of a ledger whose record has no custom metadata."""
    return id_key(LEDGER_NOTES, ledger_id)


def tombstone_key(ledger_id: int) -> str:
    """Of the tombstone of a ledger that was deleted."""
    return id_key(TOMBSTONES, ledger_id)


def watermark_key(bookie_id: str) -> str:
    """Of a bookie's watermark: the revision of the store up to which it has dropped deleted ledgers."""
    return check_key(WATERMARKS + check_bookie_id(bookie_id))


def boot_key(bookie_id: str) -> str:
    """Of a bookie's boot record, by which it notices at a start that its directory is an older copy."""
    return check_key(BOOTS + check_bookie_id(bookie_id))


def passes_key(bookie_id: str) -> str:
    """Of the pass counter of a bookie's collector."""
    return check_key(PASSES + check_bookie_id(bookie_id))


def stream_name_key(name: str) -> str:
    """Of a stream's name.

    Raises:
        MisuseError: no stream can have the name.
    """
    return named_key(STREAM_NAMES, name, "a stream")


def repairs_key(ledger_id: int) -> str:
    """Of Quire's under-replicated marks of a ledger."""
    return id_key(REPAIRS, ledger_id)


def away_key(bookie_id: str) -> str:
    """Of the time that a bookie has been away."""
    return check_key(AWAY + check_bookie_id(bookie_id))


def read_only_for_key(bookie_id: str) -> str:
    """Of the time that a bookie has been read-only."""
    return check_key(READ_ONLY_FOR + check_bookie_id(bookie_id))


def worker_key(name: str) -> str:
    """Of the registration of a worker that repairs."""
    return check_key(WORKERS + name)


def missing_key(ledger_id: int) -> str:
    """Of BookKeeper's under-replicated mark of a ledger whose bookies are lost."""
    return id_key(MISSING, ledger_id)


def lock_key(ledger_id: int) -> str:
    """Of the lock of a worker that repairs a ledger."""
    return id_key(LOCKS, ledger_id)


def ledger_of(key: str) -> int | None:
    """The ledger whose id is the last part of a key; None if that is none."""
    digits = key.rpartition("/")[2]
    if len(digits) != ID_DIGITS or not (digits.isascii() and digits.isdecimal()) or int(digits) > ID_MAX:
        return None
    return int(digits)


_SHARED: Final = FieldUse("auditors, Quire's and Java's", "workers, Quire's and Java's")
_LOCKS: Final = FieldUse("workers, Quire's and Java's", "workers, Quire's and Java's")
_CANDIDATES: Final = FieldUse("auditors, Quire's and Java's", "auditors, Quire's and Java's")
_OPERATOR: Final = FieldUse("operators", "auditors and workers, Quire's and Java's")
KEYS: Final = NamedValues(
    "Keys of the metadata store",
    {
        f"{LEDGERS}<19 digits>": ("the ledger's record", FieldUse("writers, recoverers, repair", "everyone")),
        "bookies/available/<bookie>": ("a registration: takes entries", FieldUse("the bookie", "everyone")),
        "bookies/readonly/<bookie>": ("a registration: serves them only", FieldUse("the bookie", "everyone")),
        "cookies/<bookie>": (
            "the cookie, as in the bookie's directory",
            FieldUse("the bookie", "the bookie; operators"),
        ),
        "elections/<name>/<19 digits>": ("a registration: a candidate", FieldUse("candidates", "candidates")),
        "log-names/<name>": ("a log's id", FieldUse("the client that creates the log", "clients of logs")),
        "logs/<log id>": ("a log's head", FieldUse("the log's leader, sinks, operators", "clients of logs")),
        "log-pages/<log id>/<page>": (
            "a page of a log's list",
            FieldUse("the log's leader", "clients of logs"),
        ),
        "log-cursors/<owner>/<name>": ("a named position", FieldUse("readers", "readers; truncation")),
        f"{LEDGER_NOTES}<19 digits>": (
            "holes and accepted losses of a ledger whose record has format 1",
            FieldUse("the client that writes notes, in one transaction with the record", "the same"),
        ),
        f"{TOMBSTONES}<19 digits>": (
            "of a deleted ledger",
            FieldUse("the client that deletes the ledger, in one transaction with the record", "collectors"),
        ),
        f"{WATERMARKS}<bookie>": (
            "what a bookie has dropped",
            FieldUse("the bookie's collector", "bookies' collectors"),
        ),
        f"{BOOTS}<bookie>": (
            "how far a bookie's directory is known to be",
            FieldUse(
                "the bookie", "the bookie at its start, and before it goes on after its lease was pending"
            ),
        ),
        f"{PASSES}<bookie>": (
            "passes of a bookie's collector",
            FieldUse("the bookie's collector; operators", "the same"),
        ),
        AUDIT_OF_COPIES: (
            "that an auditor of Quire has run here: what decides a fragment marks the ledger for repair",
            FieldUse("Quire's auditors", "clients that write or recover"),
        ),
        HEALTH: (
            "when the store last took a change that was made to see whether it does",
            FieldUse("`quire cluster health`", "people"),
        ),
        LEDGER_IDS_ABOVE: (
            "later ledger ids are above this number",
            FieldUse(
                "the client that raises the ids; not in memory", "clients that have ids ready; in etcd all"
            ),
        ),
        f"{MISSING}<19 digits>": (
            "BookKeeper's under-replicated mark of a ledger whose bookies are lost",
            _SHARED,
        ),
        f"{LOCKS}<19 digits>": ("a registration: the worker that repairs the ledger", _LOCKS),
        f"{AUDITORS}<19 digits>": ("a registration: a candidate for Java's auditor", _CANDIDATES),
        DISABLE: ("is there while nothing is to be repaired", _OPERATOR),
        LOST_DELAY: ("how long a bookie may be away, in seconds", _OPERATOR),
        f"{REPAIRS}<19 digits>": (
            "Quire's marks: entries that bookies lack that are there",
            FieldUse("the program that finds it", "workers"),
        ),
        f"{AWAY}<bookie>": (
            "how long a bookie has been away",
            FieldUse("the auditor", "auditors"),
        ),
        f"{READ_ONLY_FOR}<bookie>": (
            "how long a bookie has been read-only",
            FieldUse("the auditor", "auditors, repairs"),
        ),
        f"{WORKERS}<name>": (
            "a registration: a worker that repairs, and what it has done",
            FieldUse("the worker", "operators' commands"),
        ),
        f"{STREAMS}<19 digits>": (
            "a stream's record",
            FieldUse("the stream's writer, take-overs", "clients of streams, bookies"),
        ),
        f"{STREAM_NAMES}<name>": (
            "a stream's id",
            FieldUse("who creates or deletes the stream", "clients of streams"),
        ),
    },
)


def sequential_key(prefix: str, number: int) -> str:
    """The key of a sequential registration; keys sort like their numbers."""
    return f"{prefix}{number:019d}"
