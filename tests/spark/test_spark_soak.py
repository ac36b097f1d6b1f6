"""A soak in executors: nothing is found where nothing is wrong, and what is broken on purpose is found and counted."""

import pytest

from quire.spark.jobs import soak

pytestmark = pytest.mark.spark


def run(spark, cluster, tmp_path, rounds=2, **options):
    work = soak.plan(cluster.uri, writers=2, records=3000, rounds=rounds, seed=4)
    return soak.run(spark, work, str(tmp_path / "table"), **options)


def figures(report):
    return report.missing, report.duplicates, report.mismatched, report.misplaced, report.failed


async def meddle(client):
    """A record that a broken writer would leave: number 5 once more, between two rounds."""
    writer = soak.SoakWriter(seed=4, number=1, value_bytes=100)
    async with await client.log("soak/4-1").open_writer() as sink:
        await sink.append(writer.value(5), key=writer.key(5))


def test_a_soak_finds_nothing_while_a_bookie_stops_and_then_what_was_broken(spark, four_bookies, tmp_path):
    told = []
    report = run(spark, four_bookies, tmp_path, rounds=1, progress=lambda *done: told.append(done))
    assert figures(report) == (0, 0, 0, 0, [])
    assert (report.written, report.read, told[-1]) == (6000, 6000, (4, 4))
    assert [row["written"] for row in report.per_writer] == [3000, 3000]
    four_bookies.stop_bookie(0)
    # The first round is in the table: only the second one and the last look are done, and it counts.
    report = run(spark, four_bookies, tmp_path)
    assert figures(report) == (0, 0, 0, 0, [])
    assert (report.written, report.read) == (12000, 24000)
    assert spark.read.parquet(str(tmp_path / "table")).count() == 2 * 6

    four_bookies.run(meddle)
    report = run(spark, four_bookies, tmp_path, rounds=3)
    # The foreign record stands where number 6,000 belongs; both looks at the third round see it.
    assert not report.ok
    assert figures(report) == (2, 0, 0, 2, [])


@pytest.mark.slow
def test_logs_of_a_clean_soak_can_be_deleted(spark, four_bookies, tmp_path):
    assert run(spark, four_bookies, tmp_path, delete=True).ok
    assert four_bookies.run(lambda client: client.logs()) == []
