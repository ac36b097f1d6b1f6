"""The tables of a metadata file, in both formats, and the way from format 1 to format 2.

In format 2 the row of counters has a copy of itself, which SQLite makes anew at each change and which is compared when
the counters are read; and a trigger refuses a value without the checksum's mark, so that a program that opened the file
before it was upgraded, and knows nothing of checksums, is told so at its next change.

Source: `docs/formats/metadata.md`, "The SQLite file"; SQLite documentation, "Generated Columns", "CREATE TRIGGER".
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from quire.metadata.checked import CHECKED_FORMAT, HEAD, seal

TOO_OLD: Final = (
    f"this metadata has format {CHECKED_FORMAT}, and this program is too old to change it: start it again with Quire"
    " 0.2 or newer"
)
_COPY: Final = (
    "revision || ' ' || trimmed || ' ' || next_ledger || ' ' || instance || ' ' || generation || ' ' || inode"
)
_COUNTERS: Final = f"""CREATE TABLE counters (
        one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL, trimmed INTEGER NOT NULL,
        next_ledger INTEGER NOT NULL, instance TEXT NOT NULL, generation INTEGER NOT NULL, inode TEXT NOT NULL,
        copy TEXT NOT NULL GENERATED ALWAYS AS ({_COPY}) STORED)"""
_ONLY_CHECKED: Final = f"""CREATE TRIGGER entries_are_checked BEFORE INSERT ON entries
        WHEN NEW.value IS NOT NULL AND substr(NEW.value, 1, {len(HEAD)}) IS NOT x'{HEAD.hex()}'
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
    """The row of counters."""

    revision: int
    trimmed: int
    next_ledger: int
    instance: str
    generation: int
    inode: str

    @classmethod
    def read(cls, connection: sqlite3.Connection, store_format: int) -> Counters | str:
        """The counters as they are now, or what is wrong with them."""
        row = connection.execute("SELECT * FROM counters").fetchone()
        if row is None:
            return "its counters are missing"
        fields = row[1:7]
        if store_format >= CHECKED_FORMAT and row[7] != " ".join(map(str, fields)):
            return f"its counters {fields} do not match their copy {row[7]!r}"
        return cls(*fields)


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
    run("INSERT INTO counters SELECT * FROM counters_before")
    run("DROP TABLE counters_before")
    run(_ONLY_CHECKED)
    run(f"PRAGMA user_version = {CHECKED_FORMAT}")
    return sealed
