"""A real Spark whose checkpoint is put back or copied, and two writes under one number: an error, never rows lost or twice.

`make test` takes one case of each; the others are `make full`'s, since each query of Spark takes seconds.
"""

from __future__ import annotations

import shutil

import pytest
from pyspark.errors.exceptions.base import StreamingQueryException

pytestmark = pytest.mark.spark


def values(cluster, log):
    async def read(client):
        return [record.value.decode() async for record in client.log(log).read()]

    return cluster.run(read)


class Copying:
    """A stream of text files, or of a log's records, into a log, a batch a run; and what befalls its checkpoint."""

    def __init__(self, spark, cluster, folder, name, source, *, keep="true"):
        self.spark, self.cluster, self.folder, self.keep = spark, cluster, folder, keep
        self.source, self.log = source, f"{name}-{source}"
        self.checkpoint = folder / "checkpoint"
        (folder / "in").mkdir()
        if source == "log":
            cluster.run(self._create)

    async def _create(self, client):
        await client.log(f"{self.log}-in").create()

    def add(self, *rows):
        async def append(client):
            async with await client.log(f"{self.log}-in").open_writer() as writer:
                await writer.append_many([row.encode() for row in rows])

        if self.source == "log":
            self.cluster.run(append)
        else:
            (self.folder / "in" / f"{rows[0]}.txt").write_text("\n".join(rows))

    def run(self, checkpoint=None, **options):
        reader = self.spark.readStream
        if self.source == "log":
            reader = reader.format("quire").option("cluster", self.cluster.uri)
            rows = reader.load(f"{self.log}-in").select("value")
        else:
            rows = reader.text(str(self.folder / "in"))
        query = rows.where(self.keep).coalesce(1).writeStream.format("quire").options(**options)
        query = query.option("cluster", self.cluster.uri).option("create", "true")
        query = query.option("checkpointLocation", str(checkpoint or self.checkpoint))
        query.trigger(availableNow=True).start(self.log).awaitTermination()

    def copy(self, name):
        return shutil.copytree(self.checkpoint, self.folder / name)

    def put_back(self, copied):
        shutil.rmtree(self.checkpoint)
        shutil.copytree(copied, self.checkpoint)

    def written(self):
        return values(self.cluster, self.log)


def forget(checkpoint, folder, number):
    """A file of a checkpoint is gone, and the checksum beside it."""
    for name in (f"{number}", f".{number}.crc"):
        (checkpoint / folder / name).unlink(missing_ok=True)


SOURCES = pytest.mark.parametrize("source", ["text", pytest.param("log", marks=pytest.mark.slow)])


@SOURCES
def test_a_checkpoint_that_lost_its_newest_files_is_an_error_and_loses_no_row(
    spark, cluster, tmp_path, source
):
    stream = Copying(spark, cluster, tmp_path, "went-back", source)
    stream.add("a0", "b0")
    stream.run()
    old = stream.copy("old")
    stream.add("a1", "b1")
    stream.run()
    stream.add("a2", "b2")
    stream.run()
    before = stream.written()
    assert before == ["a0", "b0", "a1", "b1", "a2", "b2"]
    # Only the last files are gone: batch 2 comes again, and holds other rows than the log's batch 2.
    stream.add("a3", "b3")
    for folder in ("offsets", "commits"):
        forget(stream.checkpoint, folder, 2)
    if source == "text":  # else Spark itself would know that these files were batch 2
        forget(stream.checkpoint, "sources/0", 2)
    with pytest.raises(
        StreamingQueryException,
        match=rf"quire: log 'went-back-{source}': batch 2 of this query is in the log, made of another input "
        r"\(\w{12}\) than the checkpoint's file offsets/2 says \(\w{12}\); the checkpoint is at batch 2\..*"
        r"onCheckpointReset=append \(rows may come twice\) or onCheckpointReset=skip",
    ):
        stream.run()
    # A backup: its next batch is 1, the log's is 2.
    stream.put_back(old)
    with pytest.raises(
        StreamingQueryException,
        match=r"the checkpoint is at batch 1, and batch 2 of its query is in the log\. A whole checkpoint repeats only",
    ):
        stream.run()
    assert stream.written() == before
    # With consent it goes on, and from then on as ever: Spark's note of it is lost, and it comes again.
    stream.run(onCheckpointReset="append")
    after = stream.written()
    assert after[:6] == before
    assert sorted(after[6:]) == ["a1", "a2", "a3", "b1", "b2", "b3"]
    stream.add("a4")
    forget(stream.checkpoint, "commits", 1)
    stream.run()
    assert stream.written() == [*after, "a4"]


@SOURCES
def test_a_copied_checkpoint_that_goes_on_after_its_original_writes_nothing_twice(
    spark, cluster, tmp_path, source
):
    # Some batches have no row for the log: they give the copy higher numbers, and are compared as well.
    stream = Copying(spark, cluster, tmp_path, "copied", source, keep="cast(value AS string) not like 'no%'")
    stream.add("a0")
    stream.run()
    copy = stream.copy("copy")
    stream.add("no1")
    stream.run()
    stream.run(copy)
    stream.add("no2")
    stream.run(copy)  # two batches without rows, and nothing of the log's that it could contradict
    stream.add("a3")
    stream.run()
    assert stream.written() == ["a0", "a3"]
    # The log's batch 2 is not the copy's, so each later batch of the copy is refused, with rows or without.
    stream.add("no4")
    with pytest.raises(
        StreamingQueryException,
        match=r"batch 2 of this query is in the log, made of another .* is at batch 3\.",
    ):
        stream.run(copy)
    assert stream.written() == ["a0", "a3"]
    stream.add("a5")
    stream.run()
    assert stream.written() == ["a0", "a3", "a5"]


class Parts:
    """A stream of text files whose function writes two parts of each batch into one log."""

    def __init__(self, spark, cluster, folder, log):
        self.spark, self.cluster, self.folder, self.log = spark, cluster, folder, log
        self.between = lambda: None
        (folder / "in").mkdir()

    def add(self, *rows):
        number = len(list((self.folder / "in").iterdir()))
        (self.folder / "in" / f"{number}.txt").write_text("\n".join(rows))

    def run(self, *, parts, **options):
        def write(frame, batch):
            for part, want in (("left", "value < 'm'"), ("right", "value >= 'm'")):
                named = {"txnPart": part} if parts else {}
                writer = frame.where(want).write.format("quire").mode("append").options(**named, **options)
                writer = writer.option("cluster", self.cluster.uri).option("create", "true")
                writer.option("txnAppId", self.log).option("txnVersion", batch).save(self.log)
                self.between()

        frame = self.spark.readStream.text(str(self.folder / "in")).repartition(2)
        query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(self.folder / "ck"))
        query.trigger(availableNow=True).start().awaitTermination()


def test_two_writes_under_one_number_are_an_error_and_two_parts_are_both_written(spark, cluster, tmp_path):
    stream = Parts(spark, cluster, tmp_path, "two-parts")
    stream.add("a", "b", "x", "y", "z")
    with pytest.raises(
        StreamingQueryException,
        match=r"quire: txnAppId 'two-parts' has written version 0 into log 'two-parts' already, with other rows "
        r"\(2 rows, \w{12}\) than these \(3 rows, \w{12}\)\. Nothing was written\. .* its own txnPart",
    ):
        stream.run(parts=False)
    assert sorted(values(cluster, "two-parts")) == ["a", "b"]
    # It dies between the two parts, and comes again.
    (tmp_path / "again").mkdir()
    stream = Parts(spark, cluster, tmp_path / "again", "with-parts")
    stream.add("a", "b", "x", "y", "z")

    def die():
        stream.between = lambda: None
        raise RuntimeError("dies between two parts")

    stream.between = die
    with pytest.raises(StreamingQueryException, match="dies between two parts"):
        stream.run(parts=True)
    assert sorted(values(cluster, "with-parts")) == ["a", "b"]
    stream.run(parts=True)
    assert sorted(values(cluster, "with-parts")) == ["a", "b", "x", "y", "z"]
