"""The file in which a bookie's collector keeps its counter and its evidence."""

from __future__ import annotations

import random

import pytest

from quire.core.bookie.garbage import Kept, StoreName
from quire.storage.directory.collector_file import decode_collector, encode_collector
from quire.storage.formats.segment_format import FormatError


def test_the_file_is_read_as_it_was_written_and_refused_otherwise() -> None:
    chance = random.Random(5)
    for _ in range(200):
        kept = Kept(
            StoreName("instance" * chance.randrange(3), chance.getrandbits(64)),
            chance.getrandbits(64),
            chance.getrandbits(64),
            chance.getrandbits(64),
            {chance.getrandbits(63): chance.randint(1, 2) for _ in range(chance.randrange(20))},
            {chance.getrandbits(63): chance.getrandbits(64) for _ in range(chance.randrange(4))},
            frozenset(chance.getrandbits(63) for _ in range(chance.randrange(4))),
            asked=bool(chance.getrandbits(1)),
        )
        data = encode_collector(kept)
        assert decode_collector(data) == kept
        at = chance.randrange(len(data) * 8)
        spoilt = bytearray(data)
        spoilt[at // 8] ^= 1 << at % 8
        for bad in (bytes(spoilt), data[: chance.randrange(len(data))]):
            with pytest.raises(FormatError):
                decode_collector(bad)
