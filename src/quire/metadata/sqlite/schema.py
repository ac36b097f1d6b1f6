"""The tables of a metadata file.

The row of counters has two fields, `total` and `identity`, made of the others, that are compared when the counters are
read: one flipped bit in the row is found.

Source: `docs/formats/metadata.md`, "The SQLite file"; SQLite documentation, "Generated Columns".
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from quire.core.version import FORMAT

_COUNTERS: Final = """CREATE TABLE counters (
        one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, trimmed INTEGER NOT NULL,
        next_ledger INTEGER NOT NULL, instance TEXT NOT NULL, generation INTEGER NOT NULL, inode TEXT NOT NULL,
        total INTEGER NOT NULL GENERATED ALWAYS AS (revision + 3 * trimmed + 5 * next_ledger) STORED,
        identity TEXT NOT NULL)"""
_READ_COUNTERS: Final = "SELECT revision, trimmed, next_ledger, generation, total FROM counters"

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
)


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


def read_counters(connection: sqlite3.Connection) -> Counters | str:
    """The counters as they are now, or what is wrong with them."""
    row = connection.execute(_READ_COUNTERS).fetchone()
    if row is None:
        return "its counters are missing"
    revision, trimmed, next_ledger, generation, total = row
    try:
        fits = total == revision + 3 * trimmed + 5 * next_ledger
    except TypeError:  # a damaged row may hold anything
        fits = False
    if fits:
        return Counters(revision, trimmed, next_ledger, generation)
    return f"its counters {row[:3]!r} do not make {total!r}"


def read_identity(connection: sqlite3.Connection) -> FileIdentity | str:
    """Whose file it is, or what is wrong with that."""
    row = connection.execute("SELECT instance, generation, inode, identity FROM counters").fetchone()
    if row is None:
        return "its counters are missing"
    identity = FileIdentity(*row[:-1])
    return identity if row[-1] == identity.text else f"it is of {identity}, and of {row[-1]!r}"


def write_identity(connection: sqlite3.Connection, identity: FileIdentity) -> None:
    """Say that the file is another one, or went back: inside a transaction."""
    values = (identity.generation, identity.inode, identity.text)
    connection.execute("UPDATE counters SET generation = ?, inode = ?, identity = ?", values)


def create(connection: sqlite3.Connection, identity: FileIdentity, first_ledger: int) -> None:
    """Inside a transaction: make the tables of a new file."""
    run = connection.execute
    run(f"PRAGMA user_version = {FORMAT}")
    for statement in SCHEMA:
        run(statement)
    run("INSERT INTO counters VALUES (1, 0, 0, ?, ?, ?, ?, ?)", (first_ledger, *identity, identity.text))
