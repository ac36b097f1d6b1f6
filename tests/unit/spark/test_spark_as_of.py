"""One end of each log for one frame: what a plan makes of `asOf`, without Spark."""

import json

import pytest

from quire.core.errors import TrimmedError
from quire.spark import as_of
from quire.spark.as_of import _check_log, _now, extents
from quire.spark.extents import AbsentError
from quire.spark.options import SparkOptions, SparkUseError, Use
from quire.spark.positions import as_text
from quire.spark.read_options import READ_OPTIONS, parse
from quire.spark.schema import AS_OF_KEY, default_schema
from support.log_cluster import numbers


def options(path, **given):
    return parse(SparkOptions({"cluster": "sqlite:/c.db", "path": path, **given}, READ_OPTIONS), Use.BATCH)


async def test_logs_that_grow_are_read_up_to_one_end(at):
    for name in ("shop/b", "shop/a"):
        log = await at.made(name)
        async with await log.open_writer() as writer:
            await writer.append_many(numbers(0, 20))
    async with await at.client.create_ledger() as ledger:
        await ledger.append_many([b"12345"] * 10)
    path = f"shop/b,ledger:{ledger.ledger_id},shop/a"
    text = as_text(await _now(at.client, options(path)))
    async with await at.log("shop/b").open_writer() as writer:
        await writer.append_many(numbers(20, 30))
    found = await extents(at.client, options(path, asOf=text))
    assert [(extent.name, extent.end, extent.size) for extent in found] == [
        ("shop/b", 20, 0),
        (f"ledger:{ledger.ledger_id}", 10, 50),
        ("shop/a", 20, 0),
    ]
    assert [extent.end for extent in await extents(at.client, options(path))] == [30, 10, 20]
    # Less of a raw ledger, and a pattern that takes in a new log.
    told = json.loads(text)
    told["logs"][f"ledger:{ledger.ledger_id}"]["offset"] = 4
    await at.made("shop/c")
    wider = options(path.replace("shop/b", "shop/?"), asOf=json.dumps(told))
    assert [extent.name for extent in await extents(at.client, wider)][:2] == ["shop/a", "shop/b"]
    [part] = [each for each in await extents(at.client, options(path, asOf=json.dumps(told))) if each.record]
    assert (part.end, part.size) == (4, 20)


async def test_an_end_that_is_not_there(at, monkeypatch):
    monkeypatch.setattr(as_of, "_PAUSE_SECONDS", 0)
    log = await at.made("orders")
    writer = await log.open_writer()
    await writer.append_many(numbers(0, 20))
    await writer.roll()
    [(_, position)] = await _now(at.client, options("orders"))
    later = as_text((("orders", position._replace(offset=500)),))
    with pytest.raises(
        SparkUseError, match=r"asOf says offset 500, the log is known to end at 20: too few bookies"
    ):
        await extents(at.client, options("orders", asOf=later))
    await writer.close()
    with pytest.raises(SparkUseError, match="the log is known to end at 20, so asOf lies in the future"):
        await extents(at.client, options("orders", asOf=later))
    now = as_text((("orders", position),))
    await log.delete()
    with pytest.raises(AbsentError, match="no log 'orders'"):
        await extents(at.client, options("orders", asOf=now))
    with pytest.raises(AbsentError, match="was deleted after this read was planned"):
        await _check_log(at.client, "orders", position.identity)
    log = await at.made("orders")
    for asked in (
        extents(at.client, options("orders", asOf=now)),
        _check_log(at.client, "orders", position.identity),
    ):
        with pytest.raises(AbsentError, match=r"was deleted and created again .* Load it again"):
            await asked
    async with await log.open_writer() as writer:
        await writer.append_many(numbers(0, 10))
        await writer.roll()
        await writer.append_many(numbers(10, 20))
    early = as_text(
        tuple((name, end._replace(offset=5)) for name, end in await _now(at.client, options("orders")))
    )
    await log.truncate(before=10)
    with pytest.raises(TrimmedError, match="asOf ends it at 5, its earliest record is now 10"):
        await extents(at.client, options("orders", asOf=early))
    [extent] = await extents(at.client, options("orders", asOf=early, failOnDataLoss="false"))
    assert (extent.start, extent.end) == (10, 10)


def test_the_schema_tells_the_ends_to_people_and_programs():
    ends = tuple((f"log{number}", as_of.Position(f"id{number}", number)) for number in range(7))
    schema = default_schema(include_headers=False, as_of=ends)
    assert (
        schema["offset"].metadata["comment"] == "ends at the load: log0 0, log1 1, log2 2, log3 3, log4 4, …"
    )
    text = schema["offset"].metadata[AS_OF_KEY]
    assert options(",".join(name for name, _ in ends), asOf=text).as_of == ends
    assert default_schema(include_headers=True)["offset"].metadata == {}
