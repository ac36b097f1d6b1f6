"""The format of a cluster's store in etcd: where it stands, how values are stored in each, and the way to the newest.

The key `instance` is the cluster's id alone in format 1. In format 2 a sentence follows, for people who meet it in the
error of a program that knows only format 1: `<id> format 2, needs Quire 0.2 or newer; <CRC-32C of what is before>`.

A client that had a store of format 1 open when another one upgraded it goes on storing values as they are until it
meets one with a checksum: format 1 has none. Both kinds are read, so nothing is lost meanwhile.

Source: `docs/formats/metadata.md`, "Checked values".
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from quire.core.errors import CorruptMetadataError
from quire.metadata.checked import (
    CHECKED_FORMAT,
    FORMATS,
    PLAIN_FORMAT,
    looks_sealed,
    open_sealed,
    seal,
    to_store,
)
from quire.metadata.etcd.changes import Changes
from quire.metadata.etcd.keys import KeyLayout, prefix_end, put, unchanged
from quire.metadata.patience import Turns
from quire.metadata.store import Create, Op, Put, Upgraded
from quire.wire.proto.etcd_pb2 import KeyValue, RangeRequest

NUMBERS_KEY: Final = "/numbers"
"""Under this name the last number of a sequential registration is sealed; no key of a store begins with a slash."""
PAGE_KEYS: Final = 100
BATCH_BYTES: Final = 500_000
"""At most so much goes into one transaction of an upgrade, or one value."""
_INSTANCE: Final = re.compile(
    r"(?P<id>[0-9a-f-]{36})(?: format (?P<format>[0-9]{1,9}), needs .{1,80})?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Instance:
    """What the key `instance` says."""

    instance_id: str
    format: int

    @classmethod
    def new(cls) -> Instance:
        """Of a cluster that is about to be made."""
        return cls(str(uuid.uuid4()), CHECKED_FORMAT)

    def serialize(self) -> bytes:
        """The value of the key."""
        if self.format == PLAIN_FORMAT:
            return self.instance_id.encode()
        text = f"{self.instance_id} format {self.format}, needs Quire 0.2 or newer; ".encode()
        return text + b"%08x" % crc32c(text)

    @classmethod
    def parse(cls, value: bytes, layout: KeyLayout, hosts: str) -> Instance:
        """What the value of the key says.

        Args:
            value: what is stored.
            layout: where, for the error.
            hosts: at which servers, for the error.

        Raises:
            CorruptMetadataError: it is damaged, or has a format that is not known.
        """
        key = layout.instance.decode()
        found = _INSTANCE.fullmatch(value.decode(errors="replace"))
        known = _parsed(found)
        if known is not None and known.format not in FORMATS:
            raise CorruptMetadataError(
                f"the cluster at etcd {hosts} has metadata format {known.format} (key {key}); this version of Quire"
                f" knows {' and '.join(map(str, FORMATS))}: use the version that wrote it",
                key=key,
            )
        if known is None or known.serialize() != value:
            raise CorruptMetadataError(
                f"the key {key} at etcd {hosts} is damaged, or not Quire's: {value[:80]!r}", key=key
            )
        return known


def _parsed(found: re.Match[str] | None) -> Instance | None:
    if found is None:
        return None
    try:
        instance_id = str(uuid.UUID(found["id"]))
    except ValueError:
        return None
    return Instance(instance_id, int(found["format"] or PLAIN_FORMAT))


class StoredValues:
    """How one client stores values.

    Attributes:
        format: of the store, as far as this client knows.
    """

    def __init__(self) -> None:
        self.format = PLAIN_FORMAT

    def to_store(self, key: str, value: bytes) -> bytes:
        """What is stored of a value.

        Raises:
            MisuseError: in a store of format 1, a value that would look sealed.
        """
        return to_store(key, value, self.format)

    def sealed(self, op: Op) -> Op:
        """An operation with its value as it is stored.

        Raises:
            MisuseError: as `to_store`.
        """
        return replace(op, value=self.to_store(op.key, op.value)) if isinstance(op, Create | Put) else op

    def opened(self, key: str, stored: bytes) -> bytes:
        """The value in what is stored.

        Raises:
            CorruptMetadataError: it is damaged.
        """
        value = open_sealed(key, stored)
        if len(value) != len(stored):
            self.format = CHECKED_FORMAT  # only a program that has seen the upgrade seals
        return value

    def number_to_store(self, number: int) -> bytes:
        """What is stored of the last number of a sequential registration."""
        return self.to_store(NUMBERS_KEY, b"%d" % number)

    def number(self, stored: bytes) -> int:
        """The last number of a sequential registration.

        Raises:
            CorruptMetadataError: it is damaged.
        """
        value = self.opened(NUMBERS_KEY, stored)
        if not value.isdigit():
            raise CorruptMetadataError(
                f"the last number of a sequential registration (key numbers) is damaged: {value[:80]!r}; write a number"
                " there that is above every one in use",
                key="numbers",
            )
        return int(value)


async def upgrade(changes: Changes, layout: KeyLayout, values: StoredValues, hosts: str) -> Upgraded:
    """Bring a cluster's store to the newest format: first the key that says so, then the values, page by page.

    From the first step on older programs refuse the store, and a client that opens it seals what it writes. A value
    that was changed at the same moment is left as that change made it.

    Args:
        changes: transactions of this client.
        layout: where the keys are.
        values: how this client stores values; from now on it seals them.
        hosts: at which servers, for errors.

    Raises:
        CorruptMetadataError: the key `instance` is damaged.
        StoreAwayError: the store did not respond; a later upgrade goes on.
    """
    before = await _switch(changes, layout, hosts)
    values.format = CHECKED_FORMAT
    checked, damaged = 0, []
    start, end = layout.keys, prefix_end(layout.keys)
    while True:
        page = (await changes.range(RangeRequest(key=start, range_end=end, limit=PAGE_KEYS))).kvs
        items = [(layout.name(kv.key), kv) for kv in page]
        checked += await _seal(changes, [(name, kv) for name, kv in items if not looks_sealed(kv.value)])
        damaged += [name for name, kv in items if not _is_good(name, kv.value)]
        if len(page) < PAGE_KEYS:
            break
        start = page[-1].key + b"\0"
    numbers = (await changes.range(RangeRequest(key=layout.numbers))).kvs
    checked += await _seal(changes, [(NUMBERS_KEY, kv) for kv in numbers if not looks_sealed(kv.value)])
    return Upgraded(before, checked, tuple(damaged))


async def _switch(changes: Changes, layout: KeyLayout, hosts: str) -> int:
    """Write the newest format into the key that says it; the format that was there."""
    before = None
    turns = Turns("the store's format was changed")
    while True:
        await turns.another()
        found = (await changes.range(RangeRequest(key=layout.instance))).kvs
        instance = Instance.parse(found[0].value if found else b"", layout, hosts)
        before = before or instance.format
        if instance.format == CHECKED_FORMAT:
            return before
        newest = replace(instance, format=CHECKED_FORMAT).serialize()
        condition = unchanged(layout.instance, found[0].mod_revision)
        await changes.settled(
            [condition], [put(layout.instance, newest)], [], "the store's format was changed"
        )


async def _seal(changes: Changes, plain: list[tuple[str, KeyValue]]) -> int:
    """Seal values that are as they were found; how many. Registrations stay on their leases."""
    sealed = 0
    while plain:
        size, count = len(plain[0][1].value), 1
        while count < len(plain) and (size := size + len(plain[count][1].value)) <= BATCH_BYTES:
            count += 1
        batch, plain = plain[:count], plain[count:]
        if await _seal_at_once(changes, batch):
            sealed += count
        elif count > 1:  # one of them was changed meanwhile
            sealed += sum([await _seal_at_once(changes, [item]) for item in batch])
    return sealed


async def _seal_at_once(changes: Changes, batch: list[tuple[str, KeyValue]]) -> bool:
    conditions = [unchanged(kv.key, kv.mod_revision) for _, kv in batch]
    effects = [put(kv.key, seal(name, kv.value), keep_lease=True) for name, kv in batch]
    answer = await changes.settled(conditions, effects, [], f"{len(batch)} values got a checksum")
    return answer.succeeded


def _is_good(name: str, stored: bytes) -> bool:
    try:
        open_sealed(name, stored)
    except CorruptMetadataError:
        return False
    return True
