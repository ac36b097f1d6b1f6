"""A bookie with short segments and few descriptors, until its stdin ends; the first line on stdout is its port.

    python tests/faults/short_bookie.py DIRECTORY CLUSTER DESCRIPTORS

It runs on the program of revision 8d864d2 too.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from quire.bookie.config import BookieConfig
from quire.cli.local.serve import Ready, run_loop, serve, set_up_logging
from quire.storage.config import StorageConfig

SEGMENT_BYTES = 1024 * 1024


def ready(facts: Ready) -> None:
    print(facts.address.rpartition(":")[2], flush=True)


def main() -> None:
    directory, cluster, descriptors = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    set_up_logging()
    config = BookieConfig(
        directory=directory, name="short", storage=StorageConfig(segment_bytes=SEGMENT_BYTES)
    )
    run_loop(lambda: serve(config, cluster, create=True, until_eof=True, on_ready=ready))


if __name__ == "__main__":
    main()
