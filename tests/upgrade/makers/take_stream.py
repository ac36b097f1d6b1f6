"""Take a stream's files and frames with the code of a revision before streams: `python take_stream.py DIRECTORY FRAMES`.

It prints one JSON object: what that program says to the directory, to each request, and to a response with a run.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from quire.core.errors import MalformedFrameError, StorageError
from quire.env.real import RealFiles
from quire.storage.config import StorageConfig
from quire.storage.identity import open_identity
from quire.storage.ledger_storage import LedgerStorage
from quire.wire import native, native_bodies
from quire_testing.kit.stepped import StepClock, StepWorker


def opened(directory: Path, bookie: str, cluster: str) -> str:
    """What it says to the directory."""
    identity = open_identity(directory, bookie, cluster)
    config = StorageConfig(segment_bytes=128 * 1024)
    try:
        LedgerStorage.open(
            directory,
            config,
            identity,
            files=RealFiles(),
            worker=StepWorker(),
            clock=StepClock(1_000_000),
            chance=random.Random(1),
            served=True,
        )
    except StorageError as error:
        return str(error)
    return ""


def read(body: bytes) -> str:
    """What its client says to the body of a response with a stream's run."""
    try:
        native_bodies.decode_entries(memoryview(body), version=2)
    except MalformedFrameError as error:
        return error.message
    return ""


if __name__ == "__main__":
    frames = json.loads(Path(sys.argv[2]).read_text())
    requests = [memoryview(bytes.fromhex(frame)) for frame in frames["requests"]]
    said = {
        "directory": opened(Path(sys.argv[1]), frames["bookie"], frames["cluster"]),
        "requests": [native.receive_request(frame)[1].name for frame in requests],
        "response": read(bytes.fromhex(frames["response"])),
    }
    print(json.dumps(said))
