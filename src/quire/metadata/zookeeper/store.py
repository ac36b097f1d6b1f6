"""A metadata store in ZooKeeper, in BookKeeper's own layout: Java programs and ours share one cluster.

| need | how |
| --- | --- |
| compare-and-swap | a znode's data version, plus 1; several keys: one multi-operation |
| a version that does not come back | it does after delete and create: see the promises in `metadata/store.py` |
| what returned is seen by everyone | `sync` before each read |
| lists of one moment | one request reads folders and values: `zookeeper/tree.py` |
| watches | persistent and recursive, set again on each connection: `zookeeper/watches.py` |
| registrations | ephemeral znodes, made again in a new session: `zookeeper/registrations.py` |
| lost responses | a read is repeated, a registration settled; any other change is `MetadataUnknownError` |

`Require(key, None)` has no ZooKeeper operation: the key is created and deleted in the multi-operation.

Source: BookKeeper source, `AbstractZkLedgerManager`; docs/metadata.md, "ZooKeeper".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import CheckVersion, GetData, SetData, Transaction
from kazoo.protocol.serialization import Create as CreateNode
from kazoo.protocol.serialization import Delete as DeleteNode

from quire.core.errors import AlreadyExistsError, MetadataUnknownError, MisuseError, QuireError, RefusedError
from quire.core.ids import LedgerId
from quire.metadata.id_floor import check_raised, floor_of, raise_floor
from quire.metadata.keys import LEDGER_IDS_ABOVE, sequential_key
from quire.metadata.store import (
    LIST_LIMIT,
    Create,
    Delete,
    KeyMissingError,
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
from quire.metadata.zookeeper.cluster import Cluster, ClusterRoot
from quire.metadata.zookeeper.ids import ZookeeperLedgerIds
from quire.metadata.zookeeper.nodes import ANY_VERSION, Nodes
from quire.metadata.zookeeper.options import ZookeeperAddress
from quire.metadata.zookeeper.paths import KeyPaths
from quire.metadata.zookeeper.registrations import ZookeeperRegistrations
from quire.metadata.zookeeper.requests import Node
from quire.metadata.zookeeper.session import ZookeeperSession
from quire.metadata.zookeeper.tree import ZnodeTree, versioned
from quire.metadata.zookeeper.watches import ZookeeperWatches

REQUEST_BYTES_MAX: Final = 1_040_000
"""A server ends the connection of who sends more than a mebibyte at once."""
IMPOSSIBLE_VERSION: Final = 2**31 - 1
FOLDER_ATTEMPTS_MAX: Final = 100


class ZookeeperStore(MetadataStore):
    """One client of a cluster in ZooKeeper. Made by `ZookeeperStore.open`."""

    def __init__(self, address: ZookeeperAddress) -> None:
        self._address = address
        self._session = ZookeeperSession(
            address, on_connected=self._connected, on_event=self._event, on_failed=self._end
        )
        self._nodes = Nodes(self._session, address.root)
        self._cluster: Cluster
        self._paths: KeyPaths
        self._tree: ZnodeTree
        self._ids: ZookeeperLedgerIds
        self._watches: ZookeeperWatches | None = None
        self._registrations: ZookeeperRegistrations | None = None

    @classmethod
    async def open(cls, address: ZookeeperAddress, *, create: bool = False) -> Self:
        """Join a cluster, made by Quire or by BookKeeper.

        Args:
            address: where it is.
            create: make it if there is nothing at its path.

        Raises:
            NoClusterError: no server responds, or there is no cluster that Quire can join; the message says why.
            CorruptMetadataError: what is there cannot be read.
        """
        store = cls(address)
        await store._session.start()
        try:
            await store._join(create=create)
        except BaseException:
            await store._session.close()
            raise
        return store

    async def _join(self, *, create: bool) -> None:
        root = ClusterRoot(self._session, self._address)
        try:
            cluster = await root.look(create=create)
        except (AlreadyExistsError, MetadataUnknownError):  # another made it at the same time
            cluster = await root.look(create=False)
        self._cluster = cluster
        self._nodes.own_value = cluster.own_value
        self._paths = KeyPaths(self._address.root, cluster.layout)
        self._tree = ZnodeTree(self._session, self._paths)
        self._ids = ZookeeperLedgerIds(self._session, self._nodes, cluster.layout)
        self._watches = ZookeeperWatches(self._session, self._paths)
        self._registrations = ZookeeperRegistrations(self._session, self._nodes, self._paths, self._watches)

    @property
    def instance_id(self) -> str:
        return self._cluster.instance_id

    @property
    def ledger_format(self) -> int:
        return self._address.options.ledger_format

    @property
    def session_timeout_ms(self) -> int:
        return self._address.options.session_timeout_ms

    async def get(self, key: str) -> Versioned | None:
        try:
            answer, _ = await self._session.read(GetData(self._paths.path(check_key(key)), None))
        except NoNodeError:
            return None
        return versioned(Node(*answer))

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = LIST_LIMIT
    ) -> list[tuple[str, Versioned]]:
        if limit < 1:
            raise MisuseError(f"a page has at least 1 item, not {limit}")
        return await self._tree.page(prefix, after, limit)

    # --- changes -------------------------------------------------------------------------------------------------

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        check_ops(ops, "ZooKeeper", REQUEST_BYTES_MAX)
        if not ops:
            return []
        requests = [request for op in ops for request in self._requests(op)]
        owners = [op for op in ops for _ in self._requests(op)]
        for _ in range(FOLDER_ATTEMPTS_MAX):
            failed = await self._apply(requests, owners)
            if failed is None:
                await self._tidy(ops)
                return [self._version(op) for op in ops]
            op, error = failed
            makes = isinstance(op, Create) or (isinstance(op, Require) and op.version is None)
            if not (makes and isinstance(error, NoNodeError)):
                raise self._refusal(op, error) from error
            await self._nodes.make_folders(self._paths.path(op.key))
        raise MetadataUnknownError(
            f"the folder of {ops[0].key} was deleted again and again while it was made"
        )

    def _requests(self, op: Op) -> Sequence[Any]:
        path = self._paths.path(op.key)
        if isinstance(op, Create):
            return [CreateNode(path, op.value, self._session.acl, 0)]
        if isinstance(op, Put):
            return [SetData(path, op.value, _node_version(op.version))]
        if isinstance(op, Delete):
            return [DeleteNode(path, ANY_VERSION if op.version is None else _node_version(op.version))]
        if op.version is not None:
            return [CheckVersion(path, _node_version(op.version))]
        return [CreateNode(path, b"", self._session.acl, 0), DeleteNode(path, ANY_VERSION)]

    async def _apply(self, requests: Sequence[Any], owners: Sequence[Op]) -> tuple[Op, KazooException] | None:
        """Send them; the operation that cannot be done and why, None if all were done."""
        what = f"{owners[0].key} was changed" if len(owners) == 1 else f"{len(owners)} keys were changed"
        if len(requests) == 1 and not isinstance(requests[0], CheckVersion):
            try:
                await self._session.change(requests[0], what)
            except KazooException as error:
                return owners[0], error
            return None
        answers = await self._session.change(Transaction(requests), what)
        for op, answer in zip(owners, answers, strict=True):
            if isinstance(answer, KazooException) and not isinstance(
                answer, RolledBackError | RuntimeInconsistency
            ):
                return op, answer
        return None

    def _refusal(self, op: Op, error: KazooException) -> QuireError:
        if isinstance(error, NodeExistsError):
            kind = AlreadyExistsError if isinstance(op, Create) else VersionConflictError
            return kind(f"{op.key} exists already", key=op.key)
        if isinstance(error, NoNodeError):
            return KeyMissingError(f"{op.key} does not exist; it may have been deleted meanwhile", key=op.key)
        if isinstance(error, BadVersionError):
            return VersionConflictError(
                f"{op.key} does not have the version {getattr(op, 'version', None)}: it was changed meanwhile; read it"
                " and decide again",
                key=op.key,
            )
        if isinstance(error, NotEmptyError):
            return RefusedError(f"the znode of {op.key} has children that are not Quire's", key=op.key)
        return RefusedError(
            f"ZooKeeper at {self._address} refuses the change of {op.key}: {error!r}", key=op.key
        )

    @staticmethod
    def _version(op: Op) -> int:
        if isinstance(op, Create):
            return 1
        return op.version + 1 if isinstance(op, Put) else 0

    async def _tidy(self, ops: Sequence[Op]) -> None:
        """Remove the folders of ledgers and marks that were deleted, as far as they are empty."""
        for op in ops:
            if isinstance(op, Delete) or (isinstance(op, Require) and op.version is None):
                path = self._paths.path(op.key)
                for tree in self._paths.trees:
                    if op.key.startswith(tree.begin) and not path.startswith(self._paths.own + "/"):
                        await self._nodes.remove_empty(path.rpartition("/")[0], tree.root)

    # --- watches and registrations -------------------------------------------------------------------------------

    def watch(self, prefix: str) -> Watch:
        return Watch(prefix, self._attach, self._detach)

    async def _attach(self, watch: Watch) -> None:
        assert self._watches is not None
        await self._session.ready()
        await self._watches.attach(watch)

    async def _detach(self, watch: Watch) -> None:
        assert self._watches is not None
        self._watches.detach(watch)

    async def register(
        self, key: str, value: bytes, *, sequential: bool = False, again: bool = True
    ) -> Registration:
        assert self._registrations is not None
        check_key(sequential_key(key, 0) if sequential else key)
        check_value(key, value)
        return await self._registrations.register(key, value, sequential=sequential, again=again)

    async def next_ledger_id(self) -> LedgerId:
        found = await self.get(LEDGER_IDS_ABOVE) if self._ids.looks_for_floor else None
        return await self._ids.next(floor_of(found.value if found else None))

    async def raise_ledger_ids(self, above: int) -> None:
        found = await self.get(LEDGER_IDS_ABOVE)
        if floor_of(found.value if found else None) < check_raised(above):
            # First others draw greater ones, then they drop those that they have ready.
            await raise_floor(self, await self._ids.skip(above))

    # --- the session's news --------------------------------------------------------------------------------------

    async def _connected(self) -> None:
        if self._registrations is not None and self._watches is not None:
            await self._watches.connected()
            await self._registrations.connected()

    def _event(self, path: str, deleted: bool) -> None:
        if self._registrations is not None and self._watches is not None:
            self._watches.event(path)
            if deleted:
                self._registrations.deleted(path)

    def _end(self, failure: QuireError | None) -> None:
        if self._registrations is not None and self._watches is not None:
            self._watches.end(failure)
            if failure is None:
                self._registrations.forget()
            else:
                self._registrations.end()

    async def close(self) -> None:
        self._end(None)
        await self._session.close()

    def abandon(self) -> None:
        """End as a killed process would: no registration is withdrawn, the session ends by its timeout. For tests."""
        self._end(None)
        self._session.abandon()


def _node_version(version: int) -> int:
    """The znode's version; one that no znode has for a number that is no version."""
    return version - 1 if 1 <= version < IMPOSSIBLE_VERSION else IMPOSSIBLE_VERSION


async def format_cluster(address: ZookeeperAddress, *, force: bool = False) -> Cluster:
    """Make a cluster that Java accepts.

    Args:
        address: where; its layout is the cluster's.
        force: delete what is there first, with every ledger and log in it.

    Raises:
        AlreadyExistsError: there is something, and `force` is not set.
        NoClusterError: no server responds, or bookies are registered.
    """

    async def nothing() -> None:
        pass

    session = ZookeeperSession(
        address, on_connected=nothing, on_event=lambda _path, _deleted: None, on_failed=lambda _failure: None
    )
    await session.start()
    try:
        root = ClusterRoot(session, address)
        if force:
            await root.remove()
        return await root.make()
    finally:
        await session.close()
