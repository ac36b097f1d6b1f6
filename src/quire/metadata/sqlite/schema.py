"""The tables of a metadata file, in both formats, and the way from format 1 to format 2.

In format 2 the row of counters has two fields more, made of the others, that are compared when the counters are read:
one flipped bit in the row is found. `total` is made by SQLite at each change, because an old program that has the file
open may still make one, of the counters only. And a trigger refuses a value without the checksum's mark, so that a
program that opened the file before it was upgraded, and does not write checksums, gets an error at its next change.

Source: `docs/formats/metadata.md`, "The SQLite file"; SQLite documentation, "Generated Columns", "CREATE TRIGGER".
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from quire.metadata.checked import CHECKED_FORMAT, HEAD, PLAIN_FORMAT, seal

TOO_OLD: Final = (
    f"this metadata has format {CHECKED_FORMAT}, and this program is too old to change it: start it again with Quire"
    " 0.2 or newer"
)
_AFTER_HEAD: Final = HEAD[:-1] + bytes([HEAD[-1] + 1])
"""Greater than every value that begins with the mark."""
PLAIN_FIELDS: Final = 7
"""So many fields has the row of counters in format 1."""
_COUNTERS: Final = """CREATE TABLE counters (
        one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, trimmed INTEGER NOT NULL,
        next_ledger INTEGER NOT NULL, instance TEXT NOT NULL, generation INTEGER NOT NULL, inode TEXT NOT NULL,
        total INTEGER NOT NULL GENERATED ALWAYS AS (revision + 3 * trimmed + 5 * next_ledger) STORED,
        identity TEXT NOT NULL)"""
_READ_COUNTERS: Final = "SELECT revision, trimmed, next_ledger, generation, total FROM counters"
_ONLY_CHECKED: Final = f"""CREATE TRIGGER entries_are_checked BEFORE INSERT ON entries
        WHEN NEW.value < x'{HEAD.hex()}' OR NEW.value >= x'{_AFTER_HEAD.hex()}'
        BEGIN SELECT RAISE(ABORT, '{TOO_OLD}'); END"""

SCHEMA: Final = (
    _COUNTERS,
    """CREATE TABLE sessions (
        number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, timeout_ms INTEGER NOT NULL,
        owner TEXT NOT NULL)""",
    """CREATE TABLE entries (
        key TEXT PRIMARY KEY, value BLOB, version INTEGER NOT NULL, session INTEGER REFERENCES sessions (number)
        ) WITHOUT ROWID""",
    "CREATE INDEX entries_by_version ON entries (version)",
    "CREATE INDEX entries_by_session ON entries (session) WHERE session IS NOT NULL",
    _ONLY_CHECKED,
)
"""What makes a file of format 2."""


class Counters(NamedTuple):
    """What the row of counters says that changes.

    Attributes:
        revision: of the newest change.
        trimmed: the newest revision whose deletions were trimmed away.
        next_ledger: the next ledger id.
        generation: part of the identity; read with the rest because an open store must see it change.
    """

    revision: int
    trimmed: int
    next_ledger: int
    generation: int


class FileIdentity(NamedTuple):
    """What the row of counters says that changes only when the file turns out to be a copy, or to have gone back."""

    instance: str
    generation: int
    inode: str

    @property
    def text(self) -> str:
        """What stands beside the fields, to be compared with them."""
        return f"{self.instance} {self.generation} {self.inode}"


def read_counters(connection: sqlite3.Connection, store_format: int) -> Counters | str | None:
    """The counters as they are now, what is wrong with them, or None: the file has another format by now.

    Args:
        connection: to the file.
        store_format: what the caller takes it for.
    """
    if store_format == PLAIN_FORMAT:
        row = connection.execute("SELECT * FROM counters").fetchone()
        if row is not None:
            return Counters(row[1], row[2], row[3], row[5]) if len(row) == PLAIN_FIELDS else None
    else:
        row = connection.execute(_READ_COUNTERS).fetchone()
        if row is not None:
            revision, trimmed, next_ledger, generation, total = row
            try:
                fits = total == revision + 3 * trimmed + 5 * next_ledger
            except TypeError:  # a damaged row may hold anything
                fits = False
            if fits:
                return Counters(revision, trimmed, next_ledger, generation)
            return f"its counters {row[:3]!r} do not make {total!r}"
    return "its counters are missing"


def read_identity(connection: sqlite3.Connection, store_format: int) -> FileIdentity | str:
    """Whose file it is, or what is wrong with that."""
    row = connection.execute("SELECT * FROM counters").fetchone()
    if row is None:
        return "its counters are missing"
    identity = FileIdentity(*row[PLAIN_FIELDS - 3 : PLAIN_FIELDS])
    if store_format != PLAIN_FORMAT and row[-1] != identity.text:
        return f"it is of {identity}, and of {row[-1]!r}"
    return identity


def write_identity(connection: sqlite3.Connection, store_format: int, identity: FileIdentity) -> None:
    """Say that the file is another one, or went back: inside a transaction."""
    run = connection.execute
    run("UPDATE counters SET generation = ?, inode = ?", (identity.generation, identity.inode))
    if store_format != PLAIN_FORMAT:
        run("UPDATE counters SET identity = ?", (identity.text,))


def create(connection: sqlite3.Connection, identity: FileIdentity, first_ledger: int) -> None:
    """Inside a transaction: make the tables of a new file."""
    run = connection.execute
    run(f"PRAGMA user_version = {CHECKED_FORMAT}")
    for statement in SCHEMA:
        run(statement)
    run("INSERT INTO counters VALUES (1, 0, 0, ?, ?, ?, ?, ?)", (first_ledger, *identity, identity.text))


def upgrade(connection: sqlite3.Connection) -> int:
    """Inside a transaction: make format 2 of format 1; no key's version changes.

    Returns:
        How many values were sealed.
    """
    connection.create_function("quire_seal", 2, seal, deterministic=True)
    run = connection.execute
    sealed = run("UPDATE entries SET value = quire_seal(key, value) WHERE value IS NOT NULL").rowcount
    run("ALTER TABLE counters RENAME TO counters_before")
    run(_COUNTERS)
    run("INSERT INTO counters SELECT *, instance || ' ' || generation || ' ' || inode FROM counters_before")
    run("DROP TABLE counters_before")
    run(_ONLY_CHECKED)
    run(f"PRAGMA user_version = {CHECKED_FORMAT}")
    return sealed
