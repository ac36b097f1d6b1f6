"""Parquet files that are there already, as a Delta or an Iceberg table: one commit that names exactly them.

Nothing is copied. What a table should hold is compared with what it holds, so a commit that was interrupted, or came twice,
is made good by the next one. The log's list, or the snapshot, stays what counts; the table is a view of it for those who
read such tables. Each format needs its extra: `delta`, `iceberg`.

Source: docs/spark-jobs.md, "As Delta and Iceberg tables".
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import pyarrow as pa
from typer import Option

from quire.distribution import Extra, require
from quire.spark.options import SparkUseError

VERSION_FACT: Final = "quire.version"


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of a table.

    Attributes:
        name: its path below the table's directory.
        size: its bytes.
        records: rows in it.
        offsets: the first and the last offset in it, where they ascend.
    """

    name: str
    size: int
    records: int
    offsets: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """What a table is to contain.

    Attributes:
        location: the directory with the files: a URI, or an absolute path.
        schema: of the files.
        files: all of them.
        log: the log's name; `log_id` its id.
        version: which state of the log it is; a table never goes back to a smaller one.
    """

    location: str
    schema: pa.Schema
    files: tuple[TableFile, ...]
    log: str
    log_id: str
    version: int

    @property
    def facts(self) -> dict[str, str]:
        """What is kept with the commit."""
        return {"quire.log": self.log, "quire.log_id": self.log_id, VERSION_FACT: str(self.version)}


def commit_delta(content: Content) -> int:
    """Make a directory's files a Delta table, with the log's version as the application's transaction.

    Returns:
        The table's version; the one that was there where nothing had to change.

    Raises:
        MissingExtraError: `deltalake` is not installed.
    """
    _require_delta()
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import RemoveAction, create_table_with_add_actions

    schema = Schema.from_arrow(_with_microseconds(content.schema))
    properties = CommitProperties(
        custom_metadata=content.facts, app_transactions=[Transaction(content.log_id, content.version)]
    )
    if not DeltaTable.is_deltatable(content.location):
        adds = [_add_action(file) for file in content.files]
        create_table_with_add_actions(
            content.location, schema, adds, mode="error", name=content.log, commit_properties=properties
        )
        return 0
    table = DeltaTable(content.location)
    before = table.transaction_version(content.log_id)
    if before is not None and before > content.version:
        return table.version()
    there = set(pa.table(table.get_add_actions()).column("path").to_pylist())
    now_ms = time.time_ns() // 1_000_000
    stale = there - {file.name for file in content.files}
    actions = [
        *(_add_action(file) for file in content.files if file.name not in there),
        *(RemoveAction(path, data_change=True, deletion_timestamp=now_ms) for path in sorted(stale)),
    ]
    if actions:
        table.create_write_transaction(actions, "append", schema, commit_properties=properties)
        table.update_incremental()
    return table.version()


def _add_action(file: TableFile) -> Any:
    from deltalake.transaction import AddAction

    stats: dict[str, Any] = {"numRecords": file.records}
    if file.offsets is not None:
        first, last = file.offsets
        stats |= {"minValues": {"offset": first}, "maxValues": {"offset": last}, "nullCount": {"offset": 0}}
    return AddAction(file.name, file.size, {}, time.time_ns() // 1_000_000, True, json.dumps(stats))


def _with_microseconds(schema: pa.Schema) -> pa.Schema:
    """Delta knows one unit of time; its readers take the files' milliseconds for it."""
    return pa.schema(
        [
            field.with_type(pa.timestamp("us", field.type.tz)) if pa.types.is_timestamp(field.type) else field
            for field in schema
        ]
    )


def commit_iceberg(content: Content, name: str) -> int | None:
    """Make a directory's files an Iceberg table.

    Args:
        content: the files.
        name: `CATALOG:NAMESPACE.TABLE`; the catalog is one of pyiceberg's own configuration.

    Returns:
        The table's snapshot; None for a table without files.

    Raises:
        MissingExtraError: `pyiceberg` is not installed.
        SparkUseError: the name is none.
    """
    _require_iceberg()
    from pyiceberg.catalog import load_catalog
    from pyiceberg.expressions import AlwaysTrue

    catalog_name, _, identifier = name.partition(":")
    namespace, _, table_name = identifier.rpartition(".")
    if not (catalog_name and namespace and table_name):
        raise SparkUseError(f"quire: an Iceberg table is named CATALOG:NAMESPACE.TABLE, not '{name}'.")
    catalog = load_catalog(catalog_name)
    catalog.create_namespace_if_not_exists(namespace)
    table = catalog.create_table_if_not_exists(identifier, schema=content.schema)
    newest = table.current_snapshot()
    facts = newest.summary if newest is not None and newest.summary is not None else {}
    if int(facts.get(VERSION_FACT) or -1) <= content.version:
        wanted = {f"{content.location}/{file.name}" for file in content.files}
        there = {task.file.file_path for task in table.scan().plan_files()}
        with table.transaction() as transaction:
            if there - wanted:
                transaction.delete(AlwaysTrue())
                there = set()
            if wanted - there:
                # Whether a file is there already is known; pyiceberg would look at what this transaction deletes, too.
                paths = sorted(wanted - there)
                transaction.add_files(paths, snapshot_properties=content.facts, check_duplicate_files=False)
        newest = table.current_snapshot()
    return None if newest is None else newest.snapshot_id


def _require_delta() -> None:
    require(Extra.DELTA, "A Delta table")


def _require_iceberg() -> None:
    require(Extra.ICEBERG, "An Iceberg table")


@dataclass(frozen=True)
class TableOptions:
    """What else the files of a job are to be.

    Raises:
        MissingExtraError: that needs an extra that is not installed.
    """

    delta: Annotated[bool, Option("--delta", help="the files' directory is a Delta table as well")] = False
    iceberg: Annotated[
        str | None, Option(metavar="CATALOG:NAMESPACE.TABLE", help="they are an Iceberg table as well")
    ] = None

    def __post_init__(self) -> None:
        if self.delta:
            _require_delta()
        if self.iceberg:
            _require_iceberg()

    def commit(self, content: Callable[[], Content]) -> dict[str, Any]:
        """Do what they ask for; gives what a job's line tells of it."""
        published: dict[str, Any] = {}
        if self.delta:
            published["delta_version"] = commit_delta(content())
        if self.iceberg:
            published["iceberg_snapshot"] = commit_iceberg(content(), self.iceberg)
        return published
