"""What a stream leaves on a bookie's disk, and its frames, are refused in a sentence by the program before streams."""

from __future__ import annotations

import json
import random
import struct
import sys
from pathlib import Path

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.env.real import RealFiles
from quire.storage.config import StorageConfig
from quire.storage.directory.identity import open_identity
from quire.storage.ledger_storage import LedgerStorage
from quire.wire import native, native_bodies
from quire.wire.native import Flag, Kind
from quire.wire.run import checksum
from quire_testing.kit.stepped import StepClock, StepWorker
from support.golden import BOOKIE, CLUSTER
from support.old_programs import BEFORE_STREAMS, old_or_skip
from support.storage_disk import Answers, make_run, put, settle
from support.upgrading_page import documented

MAKER = Path(__file__).parent / "makers" / "take_stream.py"
KEY = b"k" * 20


def requests() -> list[bytes]:
    """One of each kind that has a term."""
    run = make_run(1, 0, 3, origin_term=2).body
    bodies = {
        Kind.ADD: (bytes(run), 0),
        Kind.READ: (native_bodies.encode_read(0, 3, 100, 2, version=2), int(Flag.FENCE)),
        Kind.READ_LAC: (b"", int(Flag.FENCE)),
        Kind.WRITE_LAC: (bytes(20), 0),
    }
    return [
        native.encode_request(kind, 1, len(body), checksum(body), ledger_id=1, flags=flags, key=KEY, term=2)
        + body
        for kind, (body, flags) in bodies.items()
    ]


def left_by_a_stream(directory: Path, *, sealed: bool, entries: bool) -> None:
    """A directory in which a ledger was written, and then a stream; `sealed`: a program before would look at footers only."""
    files = RealFiles()
    identity = open_identity(directory, BOOKIE, CLUSTER, files=files)

    def opened() -> LedgerStorage:
        return LedgerStorage.open(
            directory,
            StorageConfig(segment_bytes=128 * 1024, direct=False),
            identity,
            files=files,
            worker=StepWorker(),
            clock=StepClock(1_000_000),
            chance=random.Random(9),
        )

    storage = opened()
    put(storage, make_run(5, 0, 9), Answers())
    settle(storage)
    storage.put_facts(LedgerFacts(1, KEY, term=2), Answers(), None)
    if entries:
        put(storage, make_run(1, 0, 9, origin_term=2), Answers())
    settle(storage)
    storage.close()
    if sealed:
        storage = opened()
        for ledger_id in range(10, 40):
            put(storage, make_run(ledger_id, 0, 0, payload=bytes(9000)), Answers())
            settle(storage)
        storage.close()
    identity.release()


@pytest.mark.parametrize(("sealed", "entries"), [(False, True), (True, True), (False, False)])
def test_the_program_before_refuses_a_stream(sealed: bool, entries: bool, tmp_path: Path) -> None:
    old = old_or_skip(BEFORE_STREAMS)
    directory, frames = tmp_path / "bookie", tmp_path / "frames"
    left_by_a_stream(directory, sealed=sealed, entries=entries)
    run = bytes(make_run(1, 0, 3, origin_term=2).body)
    told = native_bodies.encode_told(3, [], version=2) + struct.pack(">I", len(run)) + run
    asked = {"bookie": BOOKIE, "cluster": CLUSTER, "response": told.hex()}
    frames.write_text(json.dumps(asked | {"requests": [frame.hex() for frame in requests()]}))
    done = old.run([sys.executable, str(MAKER), str(directory), str(frames)])
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert documented(said["directory"]).startswith(
        "DIR/segments/N.seg at offset 0: written by a newer version"
    )
    assert "features 0x1" in said["directory"]
    assert set(said["requests"]) == {"BAD_REQUEST"}
    assert said["response"] == ("a run of ledger 1 has entry headers of scheme 1: a newer client reads them")


def test_a_directory_without_a_stream_is_left_as_it_was(tmp_path: Path) -> None:
    """The program before opens it again: nothing of terms is in it."""
    old = old_or_skip(BEFORE_STREAMS)
    directory, frames = tmp_path / "bookie", tmp_path / "frames"
    files = RealFiles()
    identity = open_identity(directory, BOOKIE, CLUSTER, files=files)
    storage = LedgerStorage.open(
        directory,
        StorageConfig(segment_bytes=128 * 1024, direct=False),
        identity,
        files=files,
        worker=StepWorker(),
        clock=StepClock(1_000_000),
        chance=random.Random(9),
    )
    put(storage, make_run(5, 0, 9), Answers())
    settle(storage)
    storage.close()
    identity.release()
    frames.write_text(json.dumps({"bookie": BOOKIE, "cluster": CLUSTER, "response": "", "requests": []}))
    done = old.run([sys.executable, str(MAKER), str(directory), str(frames)])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["directory"] == ""
