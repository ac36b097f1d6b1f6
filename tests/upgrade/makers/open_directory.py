"""Open a bookie's directory with the code of revision 9e5fe3a: `python open_directory.py DIRECTORY`.

It prints what that program says, and nothing when it takes the directory.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from quire.core.errors import StorageError
from quire.env.real import RealFiles
from quire.env.stepped import StepClock, StepWorker
from quire.storage.config import StorageConfig
from quire.storage.identity import open_identity
from quire.storage.ledger_storage import LedgerStorage
from support.golden import BOOKIE, CLUSTER

if __name__ == "__main__":
    directory = Path(sys.argv[1])
    identity = open_identity(directory, BOOKIE, CLUSTER)
    config = StorageConfig(segment_bytes=128 * 1024)
    try:
        LedgerStorage.open(
            directory,
            config,
            identity,
            files=RealFiles(),
            worker=StepWorker(),
            clock=StepClock(1_000_000),
            served=True,
        )
    except StorageError as error:
        print(error)
