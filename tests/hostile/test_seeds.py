"""What fuzzing has found worth keeping, fed again: a bookie and a client come through each of them, one after another."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest

from support.hostile_worlds import StillBookie, StillClient

SEEDS = json.loads(gzip.decompress(Path(__file__).with_name("seeds.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def inputs() -> dict[str, list[bytes]]:
    return {side: [base64.b64decode(text) for text in texts] for side, texts in SEEDS.items()}


def test_a_bookie(inputs: dict[str, list[bytes]]) -> None:
    bookie = StillBookie()
    for data in inputs["bookie"]:
        bookie.serve(data)
    assert bookie.intact()


def test_a_client(inputs: dict[str, list[bytes]]) -> None:
    client = StillClient()
    for data in inputs["client"]:
        client.hear(data)
