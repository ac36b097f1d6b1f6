"""Adds come in by several ways: V2's and V3's column by column, one by one, and through protobuf whatever fields they carry;
our own together with others, one by one, and with a flag that has each opened field by field.

Each way gets the same requests at a bookie of its own, and every effect is compared after each step: the answers, the fence,
the LAC, the entries and whether a recoverer wrote them. A normal add behind a fence is refused on all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import pytest

from quire.core.answers import Answer
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.wire import bookkeeper, v2, v3
from quire.wire.entry import EntryDigest, master_key
from quire.wire.native import Flag, Kind, decode_answer, encode_request
from quire.wire.native_hello import split_hello
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from quire.wire.run import checksum, encode_run
from support.hostile_worlds import StillBookie
from support.rounds import keep_figures, rounds

pytestmark = pytest.mark.timeout(7000)
SEED: Final = 20261123
ADDS: Final = rounds(600, 100_000)
KEY: Final = master_key(b"")
DIGEST: Final = EntryDigest(DigestType.CRC32C, b"")
LEDGERS: Final = (101, 102, 103)
BATCH_MAX: Final = 12
LATER_FLAG: Final = 9
"""A flag that no version has yet."""


class Add:
    """One add, and the fields that it may carry besides."""

    def __init__(self, chance: random.Random, ledger_id: int, entry_id: int, *, recovery: bool) -> None:
        self.ledger_id, self.entry_id, self.recovery = ledger_id, entry_id, recovery
        self.lac = chance.randint(-1, entry_id - 1)
        payload = chance.randbytes(40)
        self.entry = DIGEST.seal(ledger_id, entry_id, self.lac, 0, [payload])[0] + payload
        self.priority = chance.choice((None, 0, 1, v3.HIGH_PRIORITY))
        self.write_flags = chance.choice((None, 0, v3.DEFERRED_SYNC))
        self.context = chance.choice(((), (("trace", "7"),), (("a", ""), ("b", "x" * 200))))
        self.unknown = chance.choice((b"", b"", b"\xb8\x3e\x01"))
        self.later_flag = not recovery and chance.random() < 0.3


def by_protobuf(add: Add, txn_id: int) -> bytes:
    """An add with all that it carries: nothing but protobuf takes it."""
    message = v3.request(pb.ADD_ENTRY, txn_id)
    if add.priority is not None:
        message.header.priority = add.priority
    for key, value in add.context:
        message.requestContext.add(key=key, value=value)
    body: Any = pb.AddRequest(ledgerId=add.ledger_id, entryId=add.entry_id, masterKey=KEY, body=add.entry)
    if add.write_flags is not None:
        body.writeFlags = add.write_flags
    if add.recovery:
        body.flag = v3.RECOVERY_ADD
    inner = body.SerializeToString() + (b"\xa0\x06" + bytes([LATER_FLAG]) if add.later_flag else b"")
    outer = message.SerializeToString() + b"\xaa\x06" + v3.number(len(inner)) + inner + add.unknown
    return len(outer).to_bytes(4, "big") + outer


def in_javas_layout(add: Add, txn_id: int) -> bytes:
    """The same add, plain."""
    priority = add.priority or 0
    return b"".join(
        v3.encode_add(
            txn_id, add.ledger_id, add.entry_id, KEY, add.entry, recovery=add.recovery, priority=priority
        )
    )


def of_v2(add: Add, _txn_id: int) -> bytes:
    """The same add in V2."""
    flags = (v2.V2Flag.RECOVERY_ADD if add.recovery else 0) | (v2.V2Flag.HIGH_PRIORITY if add.priority else 0)
    return b"".join(v2.encode_add(KEY, add.entry, flags))


def native(add: Add, *, flag: int = 0) -> bytes:
    """The same add in our own protocol; its number says which entry it is."""
    body = encode_run(
        add.ledger_id,
        add.entry_id,
        add.entry_id,
        [add.entry],
        [len(add.entry)],
        digest_type=DigestType.CRC32C,
    )
    return b"".join(
        (
            encode_request(
                Kind.ADD, add.entry_id + 1, len(body), checksum(body), ledger_id=add.ledger_id,
                digest_type=DigestType.CRC32C, flags=flag | Flag.RECOVERY * add.recovery, key=KEY, lac=add.lac,
            ),
            body,
        )
    )  # fmt: skip


def native_plain(add: Add, _txn_id: int) -> bytes:
    """A plain add."""
    return native(add)


def native_flagged(add: Add, _txn_id: int) -> bytes:
    """One that is not plain, because of a flag that changes nothing."""
    return native(add, flag=Flag.HIGH_PRIORITY)


def fence_native(ledger_id: int) -> bytes:
    """A read of the LAC that fences."""
    return encode_request(Kind.READ_LAC, 1, 0, 0, ledger_id=ledger_id, key=KEY, flags=Flag.FENCE)


def answers_native(sent: bytes) -> list[tuple[int, Answer]]:
    """(entry, answer) of every answer to an add, by entry."""
    _, size = split_hello(memoryview(sent)) or (b"", 0)
    said = [decode_answer(memoryview(frame)) for frame in frames_of(sent[size:])]
    return sorted((one.number - 1, one.answer) for one in said if one.kind == Kind.ADD)


def fence_v3(ledger_id: int) -> bytes:
    """A read that fences."""
    return v3.encode_read(1, ledger_id, 0, key=KEY, flag=v3.FENCE_LEDGER)


def fence_v2(ledger_id: int) -> bytes:
    """A read that fences."""
    return v2.encode_read(ledger_id, 0, flags=v2.V2Flag.DO_FENCING, key=KEY)


def frames_of(sent: bytes) -> list[bytes]:
    """The frames in what a bookie sent."""
    found, at = [], 0
    while at < len(sent):
        end = at + 4 + int.from_bytes(sent[at : at + 4], "big")
        found.append(sent[at:end])
        at = end
    return found


def answers_v3(sent: bytes) -> list[tuple[int, Answer]]:
    """(entry, answer) of every answer to an add, by entry."""
    said = [v3.decode_response(frame) for frame in frames_of(sent)]
    return sorted(
        (one.addResponse.entryId, bookkeeper.v3_answer(v3.status_of(one)))
        for one in said
        if one.HasField("addResponse")
    )


def answers_v2(sent: bytes) -> list[tuple[int, Answer]]:
    """(entry, answer) of every answer to an add, by entry."""
    said = [v2.decode_answer(frame) for frame in frames_of(sent)]
    return sorted(
        (one.entry_id, bookkeeper.v2_answer(one.code)) for one in said if isinstance(one, v2.AddAnswer)
    )


class Way:
    """One bookie, and how adds get to it; `together`: the adds of a step come in one chunk."""

    def __init__(
        self,
        name: str,
        encode: Callable[[Add, int], bytes],
        fence: Callable[[int], bytes],
        answers: Callable[[bytes], list[tuple[int, Answer]]],
        *,
        together: bool,
        hello: bool = False,
    ) -> None:
        self.name, self._encode, self._fence, self._answers = name, encode, fence, answers
        self._together = together
        self.bookie = StillBookie()
        self._hello = [self.bookie.hello] if hello else []
        store = self.bookie.inside(lambda: MemoryStore(self.bookie.space))
        for ledger_id in LEDGERS:  # else they are garbage, and go
            record = new_ledger(
                LedgerId(ledger_id), [self.bookie.server.bookie_id], write_quorum=1, ack_quorum=1,
                digest_type=DigestType.CRC32C, password=b"",
            )  # fmt: skip
            self.bookie.until_done(RecordStore(store, OF_LEDGERS).create(record))

    def add(self, adds: list[Add]) -> list[tuple[int, Answer]]:
        """What becomes of a step's adds."""
        frames = [self._encode(add, number) for number, add in enumerate(adds, 1)]
        chunks = [b"".join(frames)] if self._together else frames
        return sorted(one for chunk in chunks for one in self._answers(self._serve(chunk)))

    def fence(self, ledger_id: int) -> None:
        """Somebody recovers a ledger."""
        self._serve(self._fence(ledger_id))

    def _serve(self, data: bytes) -> bytes:
        return self.bookie.serve_pieces([*self._hello, data])

    def effects(self) -> list[tuple[object, ...]]:
        """All that is to be compared."""
        ledgers, storage = self.bookie.server.ledgers, self.bookie.server.storage
        found: list[tuple[object, ...]] = []
        for ledger_id in LEDGERS:
            info = ledgers.info(ledger_id) or {}
            recovered = [
                storage.is_recovered(ledger_id, entry_id)
                for entry_id in range(storage.last_entry(ledger_id) + 1)
            ]
            held = [tuple(interval)[:4] for interval in storage.held(ledger_id)]
            found.append((info.get("fenced"), info.get("lac"), held, recovered))
        return found


class Steps:
    """The same random steps at all ways."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.ways = [
            Way("V3 by protobuf", by_protobuf, fence_v3, answers_v3, together=True),
            Way("V3 by protobuf, one by one", by_protobuf, fence_v3, answers_v3, together=False),
            Way("V3 in columns", in_javas_layout, fence_v3, answers_v3, together=True),
            Way("V3 one by one", in_javas_layout, fence_v3, answers_v3, together=False),
            Way("V2 in columns", of_v2, fence_v2, answers_v2, together=True),
            Way("V2 one by one", of_v2, fence_v2, answers_v2, together=False),
            *(
                Way(name, encode, fence_native, answers_native, together=together, hello=True)
                for name, encode, together in (
                    ("native together", native_plain, True),
                    ("native one by one", native_plain, False),
                    ("native field by field", native_flagged, True),
                )
            ),
        ]
        self._fenced: set[int] = set()
        self._following = dict.fromkeys(LEDGERS, 0)
        self.adds = 0
        self.behind_a_fence = 0

    def step(self, number: int) -> None:
        """Adds to one ledger, now and then behind a new fence; everything is compared."""
        chance, where = self._chance, f"at step {number} of seed {SEED}"
        ledger_id = chance.choice(LEDGERS)
        if number and chance.random() < 0.05:
            self._fenced.add(ledger_id)
            for way in self.ways:
                way.fence(ledger_id)
        recovery = chance.random() < 0.3
        count = chance.randint(1, BATCH_MAX)
        first = max(0, self._following[ledger_id] - (chance.randrange(4) if recovery else 0))
        adds = [Add(chance, ledger_id, first + one, recovery=recovery) for one in range(count)]
        said = [way.add(adds) for way in self.ways]
        for way, answers in zip(self.ways, said, strict=True):
            assert answers == said[0], f"{way.name} answers otherwise {where}"
        if ledger_id in self._fenced and not recovery:
            assert said[0] == [(add.entry_id, Answer.FENCED) for add in adds], where
            self.behind_a_fence += count
        else:
            assert said[0] == [(add.entry_id, Answer.OK) for add in adds], where
            self._following[ledger_id] = max(self._following[ledger_id], first + count)
        effects = [way.effects() for way in self.ways]
        for way, one in zip(self.ways, effects, strict=True):
            assert one == effects[0], f"{way.name} has other effects {where}"
        self.adds += count


def test_every_way_of_an_add_has_the_same_effects_and_respects_the_fence() -> None:
    chance = random.Random(SEED)
    adds = behind = 0
    while adds < ADDS:
        steps = Steps(chance)
        for number in range(100):
            steps.step(number)
        adds, behind = adds + steps.adds, behind + steps.behind_a_fence
    assert behind
    keep_figures(
        "ways_of_adds",
        {"adds": adds, "ways": 9, "normal_adds_behind_a_fence": behind, "of_them_accepted": 0},
        seed=SEED,
    )
