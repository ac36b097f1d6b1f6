"""What a checkpoint's files say of a batch, and what they say when they are gone, torn, or another query's."""

from __future__ import annotations

import json

import pytest

from quire.core.log.fingerprints import is_same_batch, of_input
from quire.spark import checkpoints
from quire.spark.checkpoints import Checkpoint, query_of
from quire.spark.options import SparkUseError

QUERY = "5d0e6e0a-0000-4000-8000-000000000001"
TIMES = '{"batchWatermarkMs":0,"batchTimestampMs":%d,"conf":{}}'


def checkpoint_of(folder, name="ck", query=QUERY):
    checkpoint = folder / name
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    return checkpoint


def note(checkpoint, number, *lines, at=1):
    (checkpoint / "offsets" / f"{number}").write_text("\n".join(["v1", TIMES % at, *lines]))


def files(checkpoint, number, *entries, name=None):
    folder = checkpoint / "sources" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": path, "timestamp": 1, "batchId": batch}) for path, batch in entries]
    (folder / (name or f"{number}")).write_text("\n".join(["v1", *lines]))


def test_the_sources_lines_count_and_the_times_above_them_do_not(tmp_path):
    one, two = checkpoint_of(tmp_path, "one"), checkpoint_of(tmp_path, "two")
    note(one, 3, '{"a":1}', "-", at=1)
    note(two, 3, '{"a":1}', "-", at=2)
    found = Checkpoint(str(one), QUERY).fingerprint(3)
    assert found == of_input(3, ['{"a":1}', "-"])
    assert found == Checkpoint(str(two), QUERY).fingerprint(3)
    note(two, 3, '{"a":2}', "-")
    assert found != Checkpoint(str(two), QUERY).fingerprint(3)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "relative"])
def test_a_checkpoint_is_found_as_spark_finds_it(tmp_path, monkeypatch, form):
    checkpoint = checkpoint_of(tmp_path, "with space")
    note(checkpoint, 0, "7")
    monkeypatch.chdir(tmp_path)
    location = "with space" if form == "relative" else form.format(str(checkpoint).replace(" ", "%20"))
    if form == "{}":
        location = str(checkpoint)
    assert Checkpoint(location, QUERY).fingerprint(0) == of_input(0, ["7"])
    assert query_of(location) == QUERY


def test_a_count_of_files_stands_for_these_files(tmp_path):
    checkpoint = checkpoint_of(tmp_path)
    for number in range(11):
        note(checkpoint, number, f'{{"logOffset":{number}}}')
        files(checkpoint, number, (f"f{number}", number), name=f"{number}.compact" if number == 9 else None)
    files(checkpoint, 9, *((f"f{n}", n) for n in range(10)), name="9.compact")
    read = Checkpoint(str(checkpoint), QUERY).fingerprint
    for number in (8, 9, 10):
        found = read(number)
        assert found.files
        other = checkpoint_of(tmp_path, f"other-{number}")
        note(other, number, f'{{"logOffset":{number}}}')
        # Where the list of files is gone, the count alone is compared.
        assert is_same_batch(found, Checkpoint(str(other), QUERY).fingerprint(number))
        files(other, number, ("another", number))
        assert is_same_batch(found, Checkpoint(str(other), QUERY).fingerprint(number)) is False


@pytest.mark.parametrize(
    "change",
    [
        lambda checkpoint: (checkpoint / "offsets" / "3").unlink(),
        lambda checkpoint: (checkpoint / "offsets" / "3").write_text("v1\n"),
        lambda checkpoint: (checkpoint / "offsets" / "3").write_bytes(b"v1\n{}\n\xff\xfe"),
        lambda checkpoint: (checkpoint / "metadata").unlink(),
        lambda checkpoint: (checkpoint / "metadata").write_text("{"),
        lambda checkpoint: (checkpoint / "metadata").write_text("[]"),
        lambda checkpoint: (checkpoint / "metadata").write_text('{"id":"another query"}'),
    ],
)
def test_what_is_gone_torn_or_anothers_says_nothing(tmp_path, change):
    checkpoint = checkpoint_of(tmp_path)
    note(checkpoint, 3, "7")
    assert Checkpoint(str(checkpoint), QUERY).fingerprint(3) is not None
    change(checkpoint)
    assert Checkpoint(str(checkpoint), QUERY).fingerprint(3) is None


@pytest.mark.parametrize("location", [None, "/nonexistent/ck", "unknown://host/ck"])
def test_a_checkpoint_that_cannot_be_reached_says_nothing(location):
    assert Checkpoint(location, QUERY).fingerprint(0) is None
    with pytest.raises(SparkUseError, match=r"^quire: "):
        query_of(location)


def test_a_store_that_did_not_answer_once_is_asked_again_later(tmp_path, monkeypatch):
    checkpoint = checkpoint_of(tmp_path)
    note(checkpoint, 3, "7")
    now, away, asked = [5.0], [True], []

    class Far:
        def open_input_stream(self, path):
            asked.append(path)
            if away[0]:
                raise OSError("timed out")
            return open(path, "rb")

    monkeypatch.setattr(checkpoints, "_unreachable", {})
    monkeypatch.setattr(checkpoints, "monotonic", lambda: now[0])
    monkeypatch.setattr(checkpoints, "_opened", lambda _: (Far(), str(checkpoint)))

    def found():
        return Checkpoint("s3a://bucket/ck", QUERY).fingerprint(3)

    assert found() is None
    away[0] = False
    now[0] += 599
    assert found() is None
    assert len(asked) == 1, "every batch would wait for it"
    now[0] += 1
    assert found() == of_input(3, ["7"])
