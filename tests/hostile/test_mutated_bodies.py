"""A million mutated hellos, headers and bodies of the native protocol: a value, or an error that says why.

What is made of one never takes more memory than a frame may have.
"""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from quire.core.answers import Answer
from quire.core.errors import DigestMismatchError, MalformedFrameError
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.stripes import HeldInterval
from quire.wire import native, native_bodies, native_hello, native_info
from quire.wire.bundles import PART, decode_parts, open_bundle
from quire.wire.entry import EntryDigest
from quire.wire.native import Kind
from quire.wire.native_bodies import LacItem
from quire.wire.run import SCHEME_TERMS, RunLocation, RunView, checksum, encode_run
from support.hostile_frames import ABSURD
from support.hostile_inputs import bundle
from support.hostile_worlds import ACCESS, LEDGER, a_run
from support.many_lacs import encode_lacs
from support.rounds import keep_figures, rounds

pytestmark = pytest.mark.timeout(3000)
SEED = 20261123
FRAMES = rounds(10_000, 1_000_000)
ALLOCATED_MAX = native.FRAME_BYTES_MAX

DIGEST = EntryDigest(DigestType.CRC32C, b"")
Decode = Callable[[memoryview], Any]


def sealed_run(scheme: int, term: int) -> bytes:
    entry = ACCESS.digest.seal_with_term(LEDGER, 0, -1, 1, b"x", origin_term=term) + b"x"
    return encode_run(LEDGER, 0, 0, [entry], [len(entry)], digest_type=3, origin_term=term, scheme=scheme)


def joined(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


def good() -> list[tuple[str, bytes, Decode]]:
    """(name, a body that is right, what reads it) of everything that is said."""
    b = native_bodies
    held = [HeldInterval(0, 9, 1, 1, 3), HeldInterval(10, 40, 5, 7, 3)]
    runs = joined(b.encode_runs([a_run(0, 3), a_run(8, 9)]))
    told = b.encode_read_fields(9, [(4, 4), (6, 7)], [(6, 7)], 5)
    locations = b.encode_locations([RunLocation("/d/1.seg", 4096, 70_000, 5, 3)])
    item = LacItem(LEDGER, 7, 5, 0, 3, bytes(range(20)))
    mac = item._replace(digest_type=2, body=EntryDigest(DigestType.HMAC, b"").lac_body(LEDGER, 5))
    hello = native_hello.Hello("cluster", "bookie", 1, 2, 77, "sasl", b"auth")
    answer = native_hello.HelloAnswer(2, Answer.OK, "bookie", "cluster", "text", 77, 12)
    head = len(native_hello.MAGIC) + 4
    request = native.encode_request(Kind.READ, 1, 4, checksum(b"body"), ledger_id=LEDGER) + b"body"
    said = joined(native.encode_answer(Kind.READ, Answer.OK, 1, ledger_id=LEDGER, term=4, body=[b"body"]))
    return [
        ("hello", native_hello.encode_hello(hello)[head:-4], native_hello.decode_hello),
        ("answer to a hello", native_hello.encode_hello_answer(answer)[head:-4], native_hello.decode_hello_answer),
        ("framed hello", native_hello.encode_hello(hello), native_hello.split_hello),
        ("request", request, native.decode_request),
        ("answer", said, native.decode_answer),
        ("READ", b.encode_body(b.ReadBody(3, 9, 100, 4)), partial(b.decode_body, Kind.READ)),
        ("LONG_POLL", b.encode_body(b.LongPollBody(-1, 3, 9, 100, 50, 4)), partial(b.decode_body, Kind.LONG_POLL)),
        ("LIST_ENTRIES", b.encode_body(b.ListBody(3, 100)), partial(b.decode_body, Kind.LIST_ENTRIES)),
        ("CLEAR_LIMBO", b.encode_body(b.ClearLimboBody(9)), partial(b.decode_body, Kind.CLEAR_LIMBO)),
        ("TRUNCATE", b.encode_body(b.TruncateBody(5)), partial(b.decode_body, Kind.TRUNCATE)),
        ("WRITE_LACS", encode_lacs([item, mac, item]), b.decode_lacs),
        ("ADD_BUNDLE", bundle(), open_bundle),
        ("answer to ADD_BUNDLE", PART.pack(0, 2, 0, 1) + PART.pack(2, 1, Answer.FENCED, 0), lambda body: decode_parts(body, 3)),
        ("answer to WRITE_LACS", b.encode_refused_lacs([(5, Answer.DELETED)]), b.decode_refused_lacs),
        ("entries", told + runs, b.decode_entries),
        ("places", told + locations + runs, partial(b.decode_entries, located=True)),
        ("READ_LAC", joined(b.encode_lac_body(b"lac", b"entry", 3, 4)), b.decode_lac_body),
        ("held", b.encode_held(held, 50), lambda body: b.decode_held(body, 0)),
        ("INFO", native_info.encode_info({"limbo": True, "doubt_ranges": [[1, 2]]}), native_info.decode_info),
        ("run", a_run(0, 3), RunView.parse),
        ("run of scheme 1", sealed_run(SCHEME_TERMS, 4), RunView.parse),
        ("entry of scheme 1", DIGEST.seal_with_term(7, 1, 0, 5, b"hi", origin_term=3, flags=1) + b"hi",
         lambda body: DIGEST.open_with_term(body, 7, 1)),
    ]  # fmt: skip


def mutated(chance: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        match chance.randrange(5):
            case 0 if out:
                out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
            case 1 if out:
                del out[chance.randrange(len(out)) :]
            case 2:
                size = chance.choice((1, 2, 4, 8))
                number = chance.choice(ABSURD) & ((1 << 8 * size) - 1)
                at = chance.randrange(len(out) + 1)
                out[at : at + size] = number.to_bytes(size, "big")
            case 3:
                out += chance.randbytes(chance.randrange(1, 40))
            case _:
                at = chance.randrange(len(out) + 1)
                out[at:at] = out[chance.randrange(len(out) + 1) :][:64]
    return bytes(out)


def largest() -> list[tuple[str, bytes, Decode]]:
    """(name, body, what reads it): as much of everything as is taken."""
    b = native_bodies
    far = 2**62
    pairs = [(far + 2 * number, far + 2 * number) for number in range(b.INTERVALS_MAX)]
    others = [(far + 2 * number + 1, far + 2 * number + 1) for number in range(b.INTERVALS_MAX)]
    locations = [
        RunLocation(f"/directory/segments/{n:016x}.seg", far, 8000, n, far) for n in range(b.LOCATIONS_MAX)
    ]
    held = [HeldInterval(far + n, far + n, 64, 2**63, far) for n in range(2 * b.PAGE_INTERVALS)]
    items = [LacItem(far + n, far, far, far, 2, bytes(20), bytes(36)) for n in range(b.LACS_MAX)]
    told = b.encode_read_fields(0, [], [])
    return [
        ("unknown and damaged", b.encode_read_fields(0, others + pairs, pairs), b.decode_entries),
        ("places", told + b.encode_locations(locations), partial(b.decode_entries, located=True)),
        ("held", b.encode_held(held), lambda body: b.decode_held(body, 0)),
        ("WRITE_LACS", encode_lacs(items), b.decode_lacs),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["unknown and damaged", "places", "held", "WRITE_LACS"])
def test_the_largest_bodies(name: str) -> None:
    [(data, decode)] = [(data, decode) for other, data, decode in largest() if other == name]
    tracemalloc.start()
    try:
        made = decode(memoryview(data))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made
    assert peak <= ALLOCATED_MAX


def test_mutated_bodies() -> None:
    chance = random.Random(SEED)
    bodies = good()
    for _, data, decode in bodies:
        decode(memoryview(data))
    outcome: Counter[str] = Counter()
    silent: list[str] = []
    tracemalloc.start()
    try:
        for number in range(FRAMES):
            name, data, decode = bodies[number % len(bodies)]
            try:
                decode(memoryview(mutated(chance, data)))
            except (MalformedFrameError, DigestMismatchError) as error:
                outcome["refused"] += 1
                if len(error.message) < 10:
                    silent.append(name)
            else:
                outcome["taken"] += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    figures = {"frames": FRAMES, **outcome, "allocated_kib_max": peak // 1024}
    keep_figures("mutated_bodies", figures, seed=SEED)
    assert silent == []
    assert peak <= ALLOCATED_MAX
    assert outcome["refused"] > FRAMES // 3
