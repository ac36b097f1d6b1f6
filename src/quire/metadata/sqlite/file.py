"""The SQLite database of a metadata store: its tables, its statements, its -wal. Synchronous; one thread owns it.

What a crash can leave: a transaction is whole or absent (WAL, synchronous=FULL, so a commit that was reported survives
a loss of power; what that relies on is in `docs/crash-images.md`). A commit that fails may have happened: the caller
must report "unknown". Session files without a row are swept at the next open. A -wal that was damaged later loses
commits: `sqlite/sequence.py` detects that.

| table | what |
| --- | --- |
| counters | one row: the revision (grows with every change, is the version of what it changed), the newest revision whose deletions were trimmed away, the next ledger id, instance, generation, the file's inode; `total` and `identity`, made of the others: one flipped bit in the row is found when it is read |
| entries | one row a key; a deleted key stays with value NULL until it is trimmed, so that watchers see deletions |
| sessions | one row a session; registered keys refer to it |

Source: SQLite documentation, "Write-Ahead Logging", "PRAGMA synchronous", "PRAGMA data_version", "PRAGMA wal_checkpoint",
"Generated Columns".
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import quote

from quire.core.errors import CorruptMetadataError, NoClusterError
from quire.core.version import FORMAT
from quire.env.real import RealFiles
from quire.metadata.checked import listed, open_sealed, seal
from quire.metadata.sqlite.place import (
    APPLICATION_ID,
    BUSY_MS,
    check_kind,
    check_place,
    close_files,
    damaged,
    explain,
    primary_code,
    retry_while_busy,
)
from quire.metadata.sqlite.sequence import (
    Counters,
    FileIdentity,
    SequenceFile,
    StoreProgress,
    after_return,
    look_back,
    warn_of_return,
)
from quire.metadata.store import SESSION_TIMEOUT_MS, Create, Delete, Op, Put, Require, Versioned, judge

POLL_MS: Final = 20
QUIET_POLLS: Final = 8
"""How many times longer the pause between two looks becomes while nothing changes."""
BEATS_PER_TIMEOUT: Final = 5
TOMBSTONES_KEPT: Final = 10_000
"""Revisions for which deletions are kept; a watcher further behind reads everything again."""

SETTLE_MS: Final = 1000
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
LOG_PAGES_MAX: Final = 512
"""A commit that leaves so many pages in the log brings them into the database; the next one writes over them."""
_LOG: Final = logging.getLogger(__name__)
FIRST_LEDGER_ID: Final = 1
RESTORE_LEAP: Final = 1_000_000
"""Ledger ids, and revisions, that are jumped over when the file turns out to be a copy, or to have been set back: the original,
or the time that was lost, may have assigned them."""
CHECKED_BYTES_MAX: Final = 4 << 20
"""Files up to this size are checked whole when they are opened; larger ones as they are read."""
_KEY_END: Final = "\U0010ffff"

_UPSERT: Final = """INSERT INTO entries (key, value, version, session) VALUES (?, ?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, session = excluded.session"""
_PAGE: Final = "SELECT key, value, version, session FROM entries WHERE key {} ? AND key < ? AND value IS NOT NULL ORDER BY key LIMIT ?"
_PAGE_FROM: Final = _PAGE.format(">=")
_PAGE_AFTER: Final = _PAGE.format(">")

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as the database has it."""

    number: int
    name: str
    timeout_ms: int


def went_back_while_open(path: Path, now: Counters, seen: Counters) -> NoClusterError:
    """The error for a file that shows less than this process has seen in it, or was found to by another one.

    Args:
        path: the file.
        now: the counters that it shows.
        seen: those that it has shown before.
    """
    return NoClusterError(
        f"the metadata file {path} went back in time while it was open: it shows revision {now.revision} and next"
        f" ledger id {now.next_ledger} (generation {now.generation}), but has shown {seen.revision} and {seen.next_ledger}"
        f" (generation {seen.generation}); stop everything that uses this cluster, and start again",
        path=str(path),
    )


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """The options of a store in SQLite.

    Args:
        session_timeout_ms: how long an owner may stand still before others take its session for ended; at least 100.
        poll_ms: how often changes of other processes are looked for while there are any; less often in between.
        tombstones_kept: revisions for which deletions are kept.
        settle_ms: how long after a commit, at most, until the -wal is emptied into the file, and the file's sequence is
            written next to it; both at most this often.
        now_ms: a clock that never goes back.
    """

    session_timeout_ms: int = SESSION_TIMEOUT_MS
    poll_ms: int = POLL_MS
    tombstones_kept: int = TOMBSTONES_KEPT
    settle_ms: int = SETTLE_MS
    now_ms: Callable[[], int] = _monotonic_ms

    @property
    def beat_ms(self) -> int:
        """How often a session's counter moves."""
        return self.session_timeout_ms // BEATS_PER_TIMEOUT

    @property
    def quiet_poll_ms(self) -> int:
        """How often changes are looked for when there was none for a while; never less often than a beat is due."""
        return max(self.poll_ms, min(QUIET_POLLS * self.poll_ms, self.beat_ms))


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


class WriteAheadLog:
    """The -wal of one open database, kept short, so that damage to it loses little.

    SQLite by itself brings the log into the database when a commit finds 1,000 pages in it, and lets what is there stand
    until a later commit writes over it. Until then a flipped bit in the log takes every commit behind it back, and with
    many processes some writer or reader may be at work at each attempt, so that the log never begins anew. Here it is
    emptied whenever the file is opened, and within a second of a commit, with the write lock held; in between SQLite's own
    way does it, at half the size, because a log that is written over needs no change of the file's size in each commit.

    Args:
        connection: to the database, in WAL mode.
        path: of the database.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._said = False
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES_MAX}")

    def empty(self) -> bool:
        """Bring everything into the database and empty the log: from then on no damage to it loses anything.

        Others that read or write at the moment are not waited for; what can be done alongside them is done.

        Returns:
            Whether it is empty now. If not, for example because the disk is full, nothing is lost, and it is logged.

        Raises:
            sqlite3.Error: the database is damaged.
        """
        try:
            busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            code = primary_code(error)
            if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                raise
            if code not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED} and not self._said:
                self._said = True
                _LOG.warning("the write-ahead log of %s could not be checkpointed: %s", self._path, error)
            return False
        self._said = False
        return not busy

    def sync(self) -> bool:
        """Have the log and its name on the disk: what a killed process wrote there it may not have synced.

        SQLite has no locks on the log itself, so opening it here takes none away.

        Returns:
            Whether that was done.
        """
        try:
            descriptor = os.open(self._path.with_name(self._path.name + "-wal"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            os.fdatasync(descriptor)
            RealFiles().sync_directory(self._path.parent)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


@dataclass(frozen=True, slots=True)
class StoredRow:
    """One key that exists; `stored` is its value as the file has it."""

    key: str
    stored: bytes
    version: int
    session: int | None

    @property
    def value(self) -> bytes:
        """Its value.

        Raises:
            CorruptMetadataError: it is damaged.
        """
        return open_sealed(self.key, self.stored)

    @property
    def versioned(self) -> Versioned:
        """What callers of `get` get.

        Raises:
            CorruptMetadataError: the value is damaged.
        """
        return Versioned(self.value, self.version, self.version)

    @property
    def listed(self) -> Versioned:
        """What callers of `list` get; a damaged value raises when it is looked at."""
        return listed(self.key, self.stored, self.version)


class CommittedChanges(NamedTuple):
    """What a transaction changed: all changes after revision `since`, up to `revision`."""

    since: int
    revision: int
    keys: list[str]


class SqliteFile:
    """One connection to the database.

    Args:
        path: the file.
        create: make the file, and its folders, where it is missing or empty.
        tombstones_kept: see `TOMBSTONES_KEPT`.

    Raises:
        NoClusterError: there is no file and `create` is False, or it cannot be opened or trusted.
        CorruptMetadataError: the file is not one of ours, or damaged.

    Attributes:
        committed: what the last transaction changed; None unless it was committed.
        log: its -wal.
        sequence: the file next to it that says how far it had come.
    """

    def __init__(self, path: Path, *, create: bool, tombstones_kept: int = TOMBSTONES_KEPT) -> None:
        self.path = path
        self.revision = 0
        self.trimmed = 0
        self._tombstones_kept = tombstones_kept
        self._next_ledger = 0
        self._changed: list[str] = []
        self.committed: CommittedChanges | None = None
        self._seen: Counters | None = None
        self.sequence = SequenceFile(path)
        check_place(path, create=create)
        uri = f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}"
        try:
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=BUSY_MS / 1000)
            try:
                self._set_up(create=create)
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise explain(error, path) from error

    def _set_up(self, *, create: bool) -> None:
        run = self._connection.execute
        application = self._one("PRAGMA application_id")
        empty = application == 0 and self._tables() == 0
        if not empty:
            check_kind(self.path, application, self._one("PRAGMA user_version"))
        elif not create:
            raise CorruptMetadataError(
                f"{self.path} is empty: it is not the metadata file of a cluster; put the file back from a backup. If none was"
                " ever there, remove it and make the cluster with `quire up --dir DIRECTORY`",
                path=str(self.path),
            )
        close_files(self.path)  # of another program's file nothing is changed
        run("PRAGMA synchronous = FULL")  # first of all: what makes the file is synced too
        mode = run("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise NoClusterError(
                f"the filesystem of {self.path} has no shared memory for SQLite's write-ahead log (it stays in mode"
                f" {mode}); keep the metadata on a local filesystem",
                path=str(self.path),
            )
        self.log = WriteAheadLog(self._connection, self.path)
        run("PRAGMA foreign_keys = ON")
        run("PRAGMA busy_timeout = 0")  # waiting is done here, with finer steps than SQLite's
        self._inode = str(self.path.stat().st_ino)
        if empty:
            self._create_tables()
        self._check_health()
        self.instance_id, self.generation = self._identity()
        self._seen = self._retry_while_busy(self._counters)
        progress = self.progress
        if self.log.empty() or self.log.sync():
            self.sequence.raise_to(progress)

    def _create_tables(self) -> None:
        run = self._connection.execute
        self._retry_while_busy(lambda: run("BEGIN IMMEDIATE"))
        try:
            if not self._tables():  # another process may have been first
                run(f"PRAGMA application_id = {APPLICATION_ID}")
                create(self._connection, FileIdentity(str(uuid.uuid4()), 1, self._inode), FIRST_LEDGER_ID)
            run("COMMIT")
        except BaseException:
            self.rollback()
            raise

    def _check_health(self) -> None:
        if self.path.stat().st_size <= CHECKED_BYTES_MAX:
            found = self._retry_while_busy(lambda: self._one("PRAGMA quick_check(1)"))
            if found != "ok":
                raise damaged(self.path, str(found))

    def _counters(self) -> Counters:
        found = read_counters(self._connection)
        if isinstance(found, str):
            raise damaged(self.path, found)
        seen = self._seen
        if seen is not None:
            if (
                found.generation != self.generation
                or found.revision < seen.revision
                or found.next_ledger < seen.next_ledger
            ):
                raise went_back_while_open(self.path, found, seen)
            self._seen = found
        return found

    def _identity(self) -> tuple[str, int]:
        """Instance and generation; a file that is a copy, or that went back in time, starts a new generation."""
        found, now, newer = self._retry_while_busy(self._look_back)
        if newer is not None or found.inode != self._inode:
            self.begin()
            found, now, newer = self._look_back()
            started = None
            if newer is not None or found.inode != self._inode:  # no other process was first
                started = after_return(now, newer, RESTORE_LEAP)
                found = found._replace(inode=self._inode, generation=started.generation)
                write_identity(self._connection, found)
                self.revision, self._next_ledger = started.revision, started.next_ledger
            self.commit()
            if started is not None and newer is not None:
                warn_of_return(self.path, now, newer, started)
        return found.instance, found.generation

    def _look_back(self) -> tuple[FileIdentity, StoreProgress, StoreProgress | None]:
        """Whose file it is, how far it has come, and how far it had come if that was further."""
        slots = self.sequence.read()  # first: the file that is read after it has all that it names
        found = read_identity(self._connection)
        if isinstance(found, str):
            raise damaged(self.path, found)
        progress = look_back(found, self._counters(), slots)
        if isinstance(progress, str):
            raise damaged(self.path, progress)
        return found, *progress

    _retry_while_busy = staticmethod(retry_while_busy)

    def _one(self, statement: str, *values: object) -> object:
        row = self._connection.execute(statement, values).fetchone()
        return row[0] if row else None

    def _tables(self) -> int:
        return int(str(self._one("SELECT count(*) FROM sqlite_schema WHERE type = 'table'")))

    # --- transactions --------------------------------------------------------------------------------------------

    def begin(self, wait_ms: int = BUSY_MS) -> None:
        """Start a transaction that changes something.

        Args:
            wait_ms: how long to wait for another process that is changing something.

        Raises:
            sqlite3.Error: nothing was started.
            NoClusterError: the file under this path is not the one that was opened, or is older than it was.
        """
        self.committed = None
        self._changed = []
        self.check_same_file()
        self._retry_while_busy(lambda: self._connection.execute("BEGIN IMMEDIATE"), wait_ms)
        self._started = self._counters()
        self.revision, self.trimmed, self._next_ledger, _ = self._started

    def commit(self) -> None:
        """Make it durable.

        Raises:
            sqlite3.Error: the outcome is unknown.
        """
        now = (self.revision, self.trimmed, self._next_ledger)
        changed = now != self._started[:3]
        if changed:
            self._connection.execute("UPDATE counters SET revision = ?, trimmed = ?, next_ledger = ?", now)
        self._connection.execute("COMMIT")
        if changed and self._seen is not None:
            self._seen = Counters(*now, self.generation)
        self.committed = CommittedChanges(self._started[0], self.revision, self._changed)

    def rollback(self) -> None:
        """Undo what the transaction did; does nothing where SQLite has done so already."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @property
    def is_same_file(self) -> bool:
        """Whether the file that was opened still has its name. Any thread may ask."""
        try:
            return str(self.path.stat().st_ino) == self._inode
        except FileNotFoundError:
            return False

    def check_same_file(self) -> None:
        """Notice that the file was removed or replaced while it was open.

        Raises:
            NoClusterError: naming the path.
        """
        if not self.is_same_file:
            raise NoClusterError(
                f"the metadata file {self.path} was removed or replaced while it was open; stop everything that uses"
                " this cluster, put the right file there, and start again",
                path=str(self.path),
            )

    # --- inside a transaction ------------------------------------------------------------------------------------

    def apply(
        self, ops: Sequence[Op], session: int | None = None, *, over: Callable[[int], bool] | None = None
    ) -> list[int]:
        """Decide all, then change all; one revision for all of them.

        Args:
            ops: the operations, in order.
            session: the session that a `Create` registers for, if any.
            over: whether a session is over; the keys of one that is do not exist any more.

        Raises:
            AlreadyExistsError, KeyMissingError, VersionConflictError: nothing was changed.
        """
        # All of them first: to end a session that is over is a change with a revision of its own.
        found = {op.key: self._found(op.key, over) for op in ops}
        staged: dict[str, tuple[bytes | None, int, int | None]] = {}
        for op in ops:
            key = op.key
            value, version, owner = staged.get(key, found[key])
            judge(op, None if value is None else version)
            if isinstance(op, Create):
                staged[key] = (seal(key, op.value), self.revision + 1, session)
            elif isinstance(op, Put):
                staged[key] = (seal(key, op.value), self.revision + 1, owner)
            elif isinstance(op, Delete):
                staged[key] = (None, self.revision + 1, None)
        if staged:
            self.revision += 1
            self._changed += staged
            self._connection.executemany(_UPSERT, [(key, *row) for key, row in staged.items()])
        return [0 if isinstance(op, Delete | Require) else self.revision for op in ops]

    def end_key(self, key: str) -> None:
        """Remove a key, whatever it holds."""
        self.revision += 1
        self._changed.append(key)
        self._connection.execute(_UPSERT, (key, None, self.revision, None))

    def _found(self, key: str, over: Callable[[int], bool] | None) -> tuple[bytes | None, int, int | None]:
        row = self.get(key)
        if row is None or (over is not None and row.session is not None and over(row.session)):
            return None, 0, None
        return row.stored, row.version, row.session

    def reserve_ledger_ids(self, count: int) -> range:
        """Ids that are assigned only once."""
        first = self._next_ledger
        self._next_ledger += count
        return range(first, self._next_ledger)

    def trim(self) -> None:
        """Drop the rows of deleted keys that no watcher should need any more; now and then, not at every deletion."""
        oldest = self.revision - self._tombstones_kept
        if oldest - self.trimmed > self._tombstones_kept:
            self._connection.execute("DELETE FROM entries WHERE version <= ? AND value IS NULL", (oldest,))
            self.trimmed = oldest

    # --- sessions, inside a transaction --------------------------------------------------------------------------

    def add_session(self, name: str, timeout_ms: int, owner: str) -> int:
        """A new session's number. Numbers are not used again, except those of a transaction that did not commit."""
        cursor = self._connection.execute(
            "INSERT INTO sessions (name, timeout_ms, owner) VALUES (?, ?, ?)", (name, timeout_ms, owner)
        )
        return int(cursor.lastrowid or 0)

    def end_session(self, number: int, name: str) -> bool:
        """Remove a session and its keys; False if it has ended, or is another under the same number."""
        if not self.has_session(number, name):
            return False
        keys = self.keys_of_session(number)
        if keys:
            self.revision += 1
            self._changed += keys
            self._connection.executemany(_UPSERT, [(key, None, self.revision, None) for key in sorted(keys)])
        self._connection.execute("DELETE FROM sessions WHERE number = ?", (number,))
        return True

    # --- reading -------------------------------------------------------------------------------------------------

    def get(self, key: str) -> StoredRow | None:
        """One key, if it exists."""
        query = "SELECT value, version, session FROM entries WHERE key = ? AND value IS NOT NULL"
        row = self._retry_while_busy(lambda: self._connection.execute(query, (key,)).fetchone())
        return StoredRow(key, *row) if row else None

    def page(self, prefix: str, after: str | None, limit: int) -> list[StoredRow]:
        """Keys with a prefix, ascending."""
        query, start = (_PAGE_FROM, prefix) if after is None or after < prefix else (_PAGE_AFTER, after)
        rows = self._retry_while_busy(
            lambda: self._connection.execute(query, (start, prefix + _KEY_END, limit)).fetchall()
        )
        return [StoredRow(*row) for row in rows]

    def has_session(self, number: int, name: str) -> bool:
        """Whether a session is there."""
        query = "SELECT 1 FROM sessions WHERE number = ? AND name = ?"
        return self._retry_while_busy(lambda: self._one(query, number, name)) is not None

    def keys_of_session(self, number: int) -> set[str]:
        """What a session has registered."""
        query = "SELECT key FROM entries WHERE session = ?"
        return {
            key
            for (key,) in self._retry_while_busy(
                lambda: self._connection.execute(query, (number,)).fetchall()
            )
        }

    def sessions(self) -> list[SessionRow]:
        """All sessions."""
        query = "SELECT number, name, timeout_ms FROM sessions"
        return [
            SessionRow(*row)
            for row in self._retry_while_busy(lambda: self._connection.execute(query).fetchall())
        ]

    def data_version(self) -> int:
        """A number that changes when another connection has committed."""
        return int(str(self._one("PRAGMA data_version")))

    def newest(self) -> int:
        """The revision of the newest change."""
        return self._retry_while_busy(self._counters).revision

    def changes(self, since: int) -> tuple[int, list[str] | None]:
        """The revision now, and the keys that changed after `since`; None if that is no longer known."""
        return self._retry_while_busy(lambda: self._changes(since))

    def _changes(self, since: int) -> tuple[int, list[str] | None]:
        run = self._connection.execute
        run("BEGIN")  # one moment for both reads
        try:
            revision, trimmed, *_ = self._counters()
            if revision == since:
                return since, []
            if since < trimmed:
                return revision, None
            return revision, [key for (key,) in run("SELECT key FROM entries WHERE version > ?", (since,))]
        finally:
            self.rollback()

    @property
    def progress(self) -> StoreProgress:
        """How far the file has come, as far as this connection has seen; all of that is on the disk."""
        assert self._seen is not None
        return StoreProgress(self.instance_id, self.generation, self._seen.revision, self._seen.next_ledger)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
