"""Puts what fuzzing has collected into `seeds.json.gz`: `python tests/hostile/keep_seeds.py BOOKIE_CORPUS CLIENT_CORPUS`."""

import base64
import gzip
import json
import sys
from pathlib import Path

SEEDS = Path(__file__).with_name("seeds.json.gz")
INPUT_BYTES_MAX = 1200


def main():
    kept = {}
    for side, folder in zip(("bookie", "client"), sys.argv[1:3], strict=True):
        inputs = sorted(
            {path.read_bytes() for path in Path(folder).iterdir()}, key=lambda data: (len(data), data)
        )
        kept[side] = [base64.b64encode(data).decode() for data in inputs if 2 <= len(data) <= INPUT_BYTES_MAX]
    SEEDS.write_bytes(gzip.compress(json.dumps(kept).encode(), mtime=0))


if __name__ == "__main__":
    main()
