"""Where a cluster's keys are in etcd, and what a multi-operation becomes there: conditions and effects. Pure.

| etcd key, under the root | what |
| --- | --- |
| `keys/<key>` | a key of the metadata store, with its value; registrations hang on a lease |
| `instance` | the cluster's id, and the store's format: `etcd/formats.py` |
| `ledger-ids` | each write of it takes an id: the count of its writes, plus the number that ids were raised above |
| `numbers` | the last number of a sequential registration |
| `fences/<client>-<n>` | nothing that the client sent before its n-th unknown outcome happens any more |

A key's version is its `mod_revision`: the store's revision when it was changed last. Revisions only grow.

Source: etcd v3 API, "Transaction", "Key-value pair".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from quire.metadata.store import Create, Delete, Op, Put, Require, judge
from quire.wire.proto.etcd_pb2 import (
    Compare,
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
)

VERSION_MAX: Final = 2**63 - 1
"""No key ever has this version."""


class KeyLayout:
    """The etcd keys of one cluster."""

    def __init__(self, root: str) -> None:
        self.root = f"{root}/".encode()
        self.keys = self.root + b"keys/"
        self.instance = self.root + b"instance"
        self.ledger_ids = self.root + b"ledger-ids"
        self.numbers = self.root + b"numbers"

    def key(self, name: str) -> bytes:
        """Where a key is."""
        return self.keys + name.encode()

    def name(self, key: bytes) -> str:
        """The key that is there."""
        return key.removeprefix(self.keys).decode(errors="replace")

    def fence(self, client: str, number: int) -> bytes:
        """What a client's changes require to be absent."""
        return self.root + f"fences/{client}-{number}".encode()


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all that begin with a prefix; keys are UTF-8, so the last byte is never 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def absent(key: bytes) -> Compare:
    """The key must not exist."""
    return Compare(result=Compare.EQUAL, target=Compare.CREATE, key=key, create_revision=0)


def present(key: bytes) -> Compare:
    """The key must exist."""
    return Compare(result=Compare.NOT_EQUAL, target=Compare.CREATE, key=key, create_revision=0)


def unchanged(key: bytes, version: int) -> Compare:
    """The key must have a version; a number that is no version fits none, in particular not a missing key's 0."""
    wanted = version if 0 < version < VERSION_MAX else VERSION_MAX
    return Compare(result=Compare.EQUAL, target=Compare.MOD, key=key, mod_revision=wanted)


def leased(key: bytes, lease: int) -> Compare:
    """The key must hang on a lease."""
    return Compare(result=Compare.EQUAL, target=Compare.LEASE, key=key, lease=lease)


def put(key: bytes, value: bytes, *, lease: int = 0, keep_lease: bool = False) -> RequestOp:
    """Write a key."""
    return RequestOp(request_put=PutRequest(key=key, value=value, lease=lease, ignore_lease=keep_lease))


def delete(key: bytes, end: bytes = b"") -> RequestOp:
    """Delete a key, or all from it up to another."""
    return RequestOp(request_delete_range=DeleteRangeRequest(key=key, range_end=end))


def read(key: bytes, *, keys_only: bool = False) -> RequestOp:
    """Read a key."""
    return RequestOp(request_range=RangeRequest(key=key, keys_only=keys_only))


@dataclass(slots=True)
class _Staged:
    """A key as the operations so far leave it.

    Attributes:
        version: what it has if it was only looked at; 0 for a version that this change will give, None if missing.
        value: what to write; None: nothing.
        existed: whether it is in the store, if the conditions hold.
        keeps_lease: whether it is still the same key, so that a registration stays one.
    """

    version: int | None
    value: bytes | None = None
    existed: bool = False
    keeps_lease: bool = False


@dataclass(slots=True)
class Plan:
    """The etcd transaction that a multi-operation becomes.

    etcd decides all conditions on the state before, and takes each key once: so the operations of one key are folded
    into the condition of the first and the effect of all. A key that is created and deleted again has no effect.

    Attributes:
        possible: False if no state of the store fits; then the state only names the operation to be refused.
    """

    layout: KeyLayout
    conditions: list[Compare] = field(default_factory=list)
    staged: dict[str, _Staged] = field(default_factory=dict)
    possible: bool = True

    @classmethod
    def of(cls, layout: KeyLayout, ops: Sequence[Op]) -> Plan:
        """The plan of some operations."""
        plan = cls(layout)
        for op in ops:
            state = plan.staged.get(op.key)
            if state is None:
                plan.staged[op.key] = plan._first(op)
            elif plan._fits(op, state):
                _change(op, state)
            else:
                plan.possible = False
        return plan

    def _first(self, op: Op) -> _Staged:
        key = self.layout.key(op.key)
        if isinstance(op, Create) or (isinstance(op, Require) and op.version is None):
            self.conditions.append(absent(key))
            state = _Staged(None)
        elif op.version is None:
            self.conditions.append(present(key))
            state = _Staged(0, existed=True, keeps_lease=True)
        else:
            self.conditions.append(unchanged(key, op.version))
            state = _Staged(op.version, existed=True, keeps_lease=True)
        _change(op, state)
        return state

    @staticmethod
    def _fits(op: Op, state: _Staged) -> bool:
        if isinstance(op, Create) or (isinstance(op, Require) and op.version is None):
            return state.version is None
        if op.version is None:
            return state.version is not None
        return state.version == op.version != 0

    def effects(self) -> list[RequestOp]:
        """What to write if the conditions hold."""
        found = []
        for name, state in self.staged.items():
            key = self.layout.key(name)
            if state.value is not None:
                found.append(put(key, state.value, keep_lease=state.keeps_lease))
            elif state.version is None and state.existed:
                found.append(delete(key))
        return found

    def reads(self) -> list[RequestOp]:
        """What to read if they do not, in the order of `staged`."""
        return [read(self.layout.key(name), keys_only=True) for name in self.staged]


def _change(op: Op, state: _Staged) -> None:
    if isinstance(op, Create | Put):
        state.keeps_lease = isinstance(op, Put) and state.keeps_lease
        state.version, state.value = 0, op.value
    elif isinstance(op, Delete):
        state.version = state.value = None
        state.keeps_lease = False


def refuse(ops: Sequence[Op], versions: Iterable[tuple[str, int | None]]) -> None:
    """Raise what the first operation that cannot be done is refused with.

    Args:
        ops: the operations.
        versions: of each key, as the store has it.

    Raises:
        AlreadyExistsError, KeyMissingError, VersionConflictError: see `judge`.
    """
    found = dict(versions)
    for op in ops:
        judge(op, found[op.key])
        if isinstance(op, Create | Put):
            found[op.key] = 0
        elif isinstance(op, Delete):
            found[op.key] = None
