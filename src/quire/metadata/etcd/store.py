"""A metadata store in etcd, for clusters of several machines without Java; the layout is Quire's own.

| need | how |
| --- | --- |
| compare-and-swap | a transaction that compares `mod_revision`, of one key or many: `etcd/keys.py` |
| what returned is seen by everyone | etcd's reads are linearizable |
| lists of one moment | one range request |
| watches | one stream, resumed at the revision where it broke: `etcd/watches.py` |
| registrations | keys on a lease, made again on another: `etcd/registrations.py` |
| lost responses | a read is repeated, a registration settled; any other change is `MetadataUnknownError` |
| reads that are decisive after that | a fence, on the same handle: `etcd/changes.py` |
| damage | every value has a checksum: `metadata/checked.py` |
| ledger ids | the count of writes of one key: `etcd/ids.py` |

Source: etcd v3 API; `metadata/store.py` has the promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Self

from quire.core.errors import (
    AlreadyExistsError,
    MisuseError,
    NoClusterError,
    QuireError,
)
from quire.core.ids import LedgerId
from quire.metadata.checked import listed, open_sealed, seal
from quire.metadata.etcd.changes import Changes
from quire.metadata.etcd.connection import EtcdConnection
from quire.metadata.etcd.formats import Instance
from quire.metadata.etcd.ids import EtcdLedgerIds
from quire.metadata.etcd.keys import (
    KeyLayout,
    Plan,
    absent,
    delete,
    prefix_end,
    put,
    read,
    refuse,
    unchanged,
)
from quire.metadata.etcd.options import EtcdAddress
from quire.metadata.etcd.registrations import EtcdRegistrations
from quire.metadata.etcd.watches import EtcdWatches, WatchedRange
from quire.metadata.id_floor import check_raised, raise_floor
from quire.metadata.keys import sequential_key
from quire.metadata.store import (
    LIST_LIMIT,
    Create,
    Delete,
    MetadataStore,
    Op,
    Put,
    Registration,
    Require,
    VersionConflictError,
    Versioned,
    Watch,
    check_key,
    check_ops,
    check_value,
)
from quire.wire.proto.etcd_pb2 import Event, KeyValue, RangeRequest

REQUEST_BYTES_MAX: Final = 1_500_000
"""A server takes 1.5 MiB at once unless configured otherwise (--max-request-bytes)."""
OPS_MAX: Final = 127
"""A server takes 128 conditions at once unless configured otherwise (--max-txn-ops); one is this client's own fence."""
BOOKIES: Final = "bookies/"


class EtcdStore(MetadataStore):
    """One client of a cluster in etcd. Made by `EtcdStore.open`."""

    def __init__(self, address: EtcdAddress) -> None:
        self._connection = EtcdConnection(address)
        self._layout = KeyLayout(address.root)
        self._changes = Changes(self._connection, self._layout)
        self._watches = EtcdWatches(self._connection)
        self._registrations = EtcdRegistrations(self._connection, self._changes, self._layout, self._watches)
        self._ids = EtcdLedgerIds(self._connection, self._layout)
        self._watchers: dict[Watch, WatchedRange] = {}
        self._instance_id = ""

    @classmethod
    async def open(cls, address: EtcdAddress, *, create: bool = False) -> Self:
        """Join a cluster.

        Args:
            address: where it is.
            create: make it if there is nothing at its root.

        Raises:
            NoClusterError: no server responds, or there is no cluster.
            CorruptMetadataError: what is there is not Quire's.
        """
        store = cls(address)
        try:
            await store._connection.start()
            await store._join(create=create)
        except BaseException:
            await store._connection.close()
            raise
        return store

    async def _join(self, *, create: bool) -> None:
        address = self._connection.address
        if create:
            await make_instance(self._changes, self._layout)
        found = (await self._changes.range(RangeRequest(key=self._layout.instance))).kvs
        if not found:
            raise NoClusterError(
                f"no cluster exists at etcd://{address}; create one with `quire metadata format "
                f"--cluster etcd://{address}`"
            )
        found_at = self._layout, self._connection.hosts
        self._instance_id = Instance.parse(found[0].value, *found_at).instance_id

    @property
    def instance_id(self) -> str:
        return self._instance_id

    @property
    def session_timeout_ms(self) -> int:
        return self._connection.address.options.session_timeout_ms

    @property
    def ops_max(self) -> int:
        return OPS_MAX

    # --- reads ---------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Versioned | None:
        found = (await self._changes.range(RangeRequest(key=self._layout.key(check_key(key))))).kvs
        return self._found(key, found[0]) if found else None

    def _found(self, key: str, kv: KeyValue) -> Versioned:
        return Versioned(open_sealed(key, kv.value), kv.mod_revision, kv.mod_revision)

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = LIST_LIMIT
    ) -> list[tuple[str, Versioned]]:
        if limit < 1:
            raise MisuseError(f"a page has at least 1 item, not {limit}")
        start = self._layout.key(prefix)
        end = prefix_end(start)
        if after is not None:
            start = max(start, self._layout.key(after) + b"\0")
        if start >= end:
            self._connection.check()
            return []
        answer = await self._changes.range(RangeRequest(key=start, range_end=end, limit=limit))
        names = ((self._layout.name(kv.key), kv) for kv in answer.kvs)
        return [(name, listed(name, kv.value, kv.mod_revision)) for name, kv in names]

    # --- changes -------------------------------------------------------------------------------------------------

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        self._connection.check()
        check_ops(ops, "etcd", REQUEST_BYTES_MAX)
        if not ops:
            return []
        sealed = [
            replace(op, value=seal(op.key, op.value)) if isinstance(op, Create | Put) else op for op in ops
        ]
        plan = Plan.of(self._layout, sealed)
        reads = plan.reads()
        what = f"{ops[0].key} was changed" if len(ops) == 1 else f"{len(ops)} keys were changed"
        if not plan.possible:
            answer = await self._changes.settled([], reads, [], what)
        else:
            answer = await self._changes.commit(plan.conditions, plan.effects(), reads, what)
            if answer.succeeded:
                revision = answer.header.revision
                return [0 if isinstance(op, Delete | Require) else revision for op in ops]
        found = [response.response_range.kvs for response in answer.responses[: len(reads)]]
        versions = (kvs[0].mod_revision if kvs else None for kvs in found)
        refuse(ops, zip(plan.staged, versions, strict=True))
        raise VersionConflictError(
            f"an operation on {ops[-1].key} expects the version of an earlier operation of the same "
            "transaction, which is not known yet",
            key=ops[-1].key,
        )

    async def next_ledger_id(self) -> LedgerId:
        return await self._ids.next()

    async def raise_ledger_ids(self, above: int) -> None:
        if check_raised(above) > await self._ids.newest():
            await raise_floor(self, above)

    # --- watches and registrations -------------------------------------------------------------------------------

    def watch(self, prefix: str) -> Watch:
        return Watch(prefix, self._attach, self._detach)

    async def _attach(self, watch: Watch) -> None:
        start = self._layout.key(watch.prefix)

        def on_events(events: Iterable[Event], reread: bool) -> None:
            watch.offer((self._layout.name(event.kv.key) for event in events), reread_all=reread)

        place = await self._watches.add(start, prefix_end(start), on_events, watch.end)
        self._watchers[watch] = place

    async def _detach(self, watch: Watch) -> None:
        place = self._watchers.pop(watch, None)
        if place is not None:
            await self._watches.remove(place)

    async def register(
        self, key: str, value: bytes, *, sequential: bool = False, again: bool = True
    ) -> Registration:
        self._connection.check()
        check_key(sequential_key(key, 0) if sequential else key)
        check_value(key, value)
        return await self._registrations.register(key, value, sequential=sequential, again=again)

    # --- the end ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._end()
        try:
            self._connection.check()
        except MisuseError:
            return  # closed already, or a child of a fork: the session is the parent's
        try:
            await self._registrations.close()
        finally:
            await self._connection.close()

    def abandon(self) -> None:
        """End as a killed process would: nothing is taken back, the lease ends by its time. For tests."""
        self._end()
        self._registrations.abandon()
        self._connection.abandon()

    def _end(self) -> None:
        self._watches.close()
        for watch in self._watchers:
            watch.end()
        self._watchers.clear()


async def make_instance(changes: Changes, layout: KeyLayout) -> bool:
    """Give a cluster an id; whether it had none."""
    value = Instance.new().serialize()
    answer = await changes.settled(
        [absent(layout.instance)],
        [put(layout.instance, value)],
        [read(layout.instance)],
        "a cluster was made",
    )
    return answer.succeeded or answer.responses[0].response_range.kvs[0].value == value


async def format_cluster(address: EtcdAddress, *, force: bool = False) -> str:
    """Make a cluster.

    Args:
        address: where.
        force: delete what is there first, with every ledger and log in it.

    Returns:
        Its instance id.

    Raises:
        AlreadyExistsError: there is one, and `force` is not set.
        NoClusterError: no server responds, or bookies are registered.
    """
    connection = EtcdConnection(address)
    layout = KeyLayout(address.root)
    changes = Changes(connection, layout)
    try:
        await connection.start()
        if not await make_instance(changes, layout):
            if not force:
                raise AlreadyExistsError(
                    f"a cluster already exists at etcd://{address}; `quire metadata format --force` deletes it, with everything in it"
                )
            await _make_anew(changes, layout, address)
        found = (await changes.range(RangeRequest(key=layout.instance))).kvs
        return Instance.parse(found[0].value, layout, connection.hosts).instance_id
    finally:
        await connection.close()


async def _make_anew(changes: Changes, layout: KeyLayout, address: EtcdAddress) -> None:
    bookies = layout.key(BOOKIES)
    instance = (await changes.range(RangeRequest(key=layout.instance))).kvs
    alive = (
        await changes.range(RangeRequest(key=bookies, range_end=prefix_end(bookies), keys_only=True))
    ).kvs
    if alive:
        names = ", ".join(layout.name(kv.key).removeprefix(BOOKIES) for kv in alive[:5])
        raise NoClusterError(
            f"{len(alive)} bookies are registered at etcd://{address} ({names}); stop them first, then format"
        )
    effects = [
        delete(layout.keys, prefix_end(layout.keys)),
        delete(layout.ledger_ids),
        delete(layout.numbers),
        put(layout.instance, Instance.new().serialize()),
    ]
    conditions = [unchanged(layout.instance, instance[0].mod_revision)] if instance else []
    answer = await changes.settled(conditions, effects, [], "the cluster was made anew")
    if not answer.succeeded:
        raise QuireError(f"the cluster at etcd://{address} was formatted by another client meanwhile")
