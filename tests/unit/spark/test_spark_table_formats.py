"""Parquet files as Delta and Iceberg tables: what a table holds is what it was told last, whatever came before."""

import sys
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quire.core.errors import MissingExtraError
from quire.log.archive import SCHEMA
from quire.spark.jobs import archive, command
from quire.spark.jobs.table_formats import Content, TableFile, commit_delta, commit_iceberg
from quire.spark.options import SparkUseError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:pyiceberg"),
]

T0 = datetime(2026, 11, 1, tzinfo=UTC)
LOG_ID = "0" * 32


@pytest.fixture
def place(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def file(place, first, count):
    """A file as the archive writes it."""
    columns = {
        "offset": pa.array(range(first, first + count), pa.int64()),
        "timestamp": pa.array([T0 + timedelta(milliseconds=first + n) for n in range(count)]).cast(
            SCHEMA.field("timestamp").type
        ),
        "key": pa.array([b"key"] * count, pa.binary()),
        "value": pa.array([None if n % 3 else b"%d" % n for n in range(count)], pa.binary()),
        "headers": pa.array(
            [[{"key": "trace", "value": b"x"}] if n % 2 else None for n in range(count)],
            SCHEMA.field("headers").type,
        ),
        "ledger": pa.array([7] * count, pa.int64()),
        "entry": pa.array([0] * count, pa.int64()),
        "index": pa.array(range(count), pa.int32()),
    }
    path = place / f"{first}.parquet"
    pq.write_table(pa.table(columns, schema=SCHEMA), path)
    return TableFile(path.name, path.stat().st_size, count, (first, first + count - 1))


def content(place, version, *files):
    return Content(place.as_uri(), SCHEMA, files, "orders", LOG_ID, version)


def in_delta(place):
    from deltalake import DeltaTable

    table = DeltaTable(str(place)).to_pyarrow_table()
    assert table.column("timestamp").to_pylist() == [
        T0 + timedelta(milliseconds=offset) for offset in table.column("offset").to_pylist()
    ]
    return sorted(table.column("offset").to_pylist())


def test_a_delta_table_is_what_it_was_told_last(place):
    first, second, third = (file(place, start, 10) for start in (0, 10, 20))
    assert commit_delta(content(place, 3, first)) == 0
    assert commit_delta(content(place, 4, first, second)) == 1
    assert in_delta(place) == list(range(20))
    # The same again, and one that was overtaken: nothing happens.
    assert commit_delta(content(place, 4, first, second)) == 1
    assert commit_delta(content(place, 3, first)) == 1
    assert in_delta(place) == list(range(20))
    # What the log does not have any more goes in the commit that brings the new.
    assert commit_delta(content(place, 9, second, third)) == 2
    assert in_delta(place) == list(range(10, 30))

    from deltalake import DeltaTable

    table = DeltaTable(str(place))
    assert table.transaction_version(LOG_ID) == 9
    assert table.history(1)[0]["quire.log"] == "orders"
    table.load_as_version(1)
    assert sorted(table.to_pyarrow_table().column("offset").to_pylist()) == list(range(20))


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    from pyiceberg.utils.config import Config

    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__HERE__WAREHOUSE", (tmp_path / "warehouse").as_uri())
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def in_iceberg():
    from pyiceberg.catalog import load_catalog

    table = load_catalog("here").load_table("logs.orders")
    return sorted(table.scan().to_arrow().column("offset").to_pylist())


@pytest.mark.usefixtures("catalog")
def test_an_iceberg_table_is_what_it_was_told_last(place):
    first, second, third = (file(place, start, 10) for start in (0, 10, 20))
    assert commit_iceberg(content(place, 2), "here:logs.orders") is None
    one = commit_iceberg(content(place, 3, first), "here:logs.orders")
    two = commit_iceberg(content(place, 4, first, second), "here:logs.orders")
    assert one != two
    assert in_iceberg() == list(range(20))
    assert commit_iceberg(content(place, 4, first, second), "here:logs.orders") == two
    assert commit_iceberg(content(place, 3, first), "here:logs.orders") == two
    assert commit_iceberg(content(place, 9, second, third), "here:logs.orders") != two
    assert in_iceberg() == list(range(10, 30))


@pytest.mark.parametrize("name", ["orders", "here:orders", ":a.b", "here:.b"])
def test_a_table_needs_its_whole_name(place, name):
    with pytest.raises(SparkUseError, match=r"CATALOG:NAMESPACE\.TABLE"):
        commit_iceberg(content(place, 1), name)


@pytest.mark.parametrize(
    ("module", "extra", "commit"),
    [
        ("deltalake", "delta", commit_delta),
        ("pyiceberg", "iceberg", lambda files: commit_iceberg(files, "a:b.c")),
    ],
)
def test_a_missing_extra_is_named_before_the_job_begins(place, monkeypatch, module, extra, commit):
    monkeypatch.setitem(sys.modules, module, None)
    sentence = rf"table needs the extra '{extra}' \({module} is not installed\): .*pip install .*\[{extra}\]'"
    with pytest.raises(MissingExtraError, match=sentence):
        commit(content(place, 1))
    given = ["--cluster", "sqlite:none.db", "--log", "l", "--out", "o", "--root", "r"]
    with pytest.raises(MissingExtraError, match=sentence):
        command.job_of(
            archive.ArchiveJob,
            [*given, *({"delta": ["--delta"], "iceberg": ["--iceberg", "a:b.c"]}[extra])],
            "archive",
        )
