"""A cluster's root in ZooKeeper: making it, recognizing it, removing it.

A cluster is made by one multi-operation (root, `available`, `available/readonly`, INSTANCEID) and then LAYOUT, as Java
does it. `quire`, Quire's own tree, is made by the first who needs it and carries the instance id: a cluster that was
formatted by another tool since has another id, and ledgers that ours name would be others. So it is refused.

What a crash can leave: a root without LAYOUT, which counts as hierarchical; `format` with `force` makes it anew.

Source: BookKeeper source, `ZKRegistrationManager`, `LedgerLayout`; docs/metadata.md, "Znodes".
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, Final

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.protocol.serialization import Create, Delete, GetChildren, GetData, Transaction

from quire.core.errors import AlreadyExistsError, CorruptMetadataError, MetadataUnknownError, NoClusterError
from quire.metadata.retries import Attempts
from quire.metadata.zookeeper.nodes import ANY_VERSION, Nodes
from quire.metadata.zookeeper.options import ZookeeperAddress, ZookeeperLayout
from quire.metadata.zookeeper.paths import OWN, layout_text, parse_layout
from quire.metadata.zookeeper.session import ZookeeperSession

INSTANCE_MARK: Final = b"instance: "
INSTANCE_BYTES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the znodes below a cluster's root say of the cluster.

    Attributes:
        layout: where ledgers are.
        instance_id: the cluster's id.
    """

    layout: ZookeeperLayout
    instance_id: str

    @property
    def own_value(self) -> bytes:
        """The value of `quire`."""
        return INSTANCE_MARK + self.instance_id.encode() + b"\n"


class ClusterRoot:
    """One cluster's root.

    Args:
        session: the session.
        address: where the root is, and the layout that the URI names.
    """

    def __init__(self, session: ZookeeperSession, address: ZookeeperAddress) -> None:
        self._session = session
        self._address = address
        self._root = address.root
        self._nodes = Nodes(session, address.root)

    async def look(self, *, create: bool) -> Cluster:
        """What is there.

        Args:
            create: make the cluster if there is no root.

        Raises:
            NoClusterError: no cluster, one of another layout, or one that was formatted since Quire used it.
            CorruptMetadataError: LAYOUT or INSTANCEID cannot be read.
        """
        try:
            names, _ = await self._session.read(GetChildren(self._root, None))
        except NoNodeError:
            if create:
                return await self.make()
            raise NoClusterError(
                f"no cluster exists at {self._address}; check the path, or create one with `quire "
                f"metadata format --cluster zk://{self._address}`",
            ) from None
        if not {"LAYOUT", "available"} & set(names):
            raise NoClusterError(
                f"{self._address} is not a BookKeeper cluster: it has neither LAYOUT nor available; check the path",
            )
        layout = await self._layout()
        named = self._address.layout
        if named is not None and named is not layout:
            raise NoClusterError(
                f"{self._address} has the layout {layout.value}, and the URI says {named.value}; write"
                f" zk://{self._address}"
            )
        return Cluster(layout, await self._instance_id())

    async def _get(self, name: str) -> bytes | None:
        try:
            (data, _), _ = await self._session.read(GetData(f"{self._root}/{name}", None), fresh=False)
        except NoNodeError:
            return None
        return data or b""

    async def _layout(self) -> ZookeeperLayout:
        text = await self._get("LAYOUT")
        return ZookeeperLayout.HIERARCHICAL if text is None else parse_layout(text, str(self._address))

    async def _instance_id(self) -> str:
        """INSTANCEID; old clusters have none, then an id of our own, kept with our own records.

        To add an INSTANCEID would make the cookies of the cluster's Java bookies wrong.
        """
        data, own = await self._get("INSTANCEID"), await self._get(OWN)
        noted = self._text(own.removeprefix(INSTANCE_MARK), OWN) if own else None
        if data is None:
            if noted is None:
                return await self._note_own()
            return noted
        found = self._text(data, "INSTANCEID")
        if noted not in {None, found}:
            raise NoClusterError(
                f"{self._address} was formatted by another tool since Quire used it: its INSTANCEID is {found}, and the"
                f" records under {self._root}/{OWN} belong to {noted}; their ledgers are deleted. Remove"
                f" {self._root}/{OWN}, or format the cluster with `quire metadata format --force`"
            )
        return found

    async def _note_own(self) -> str:
        found = str(uuid.uuid4())
        try:
            await self._nodes.create(f"{self._root}/{OWN}", INSTANCE_MARK + found.encode() + b"\n")
        except (NodeExistsError, MetadataUnknownError):
            return await self._instance_id()
        return found

    def _text(self, data: bytes, name: str) -> str:
        try:
            text = data.decode().strip()
        except UnicodeDecodeError:
            text = ""
        if not text or not text.isprintable() or len(text) > INSTANCE_BYTES_MAX:
            raise CorruptMetadataError(
                f"{self._address}/{name} is damaged or not BookKeeper's: it reads {data[:80]!r}"
            )
        return text

    async def make(self) -> Cluster:
        """Make the cluster.

        Raises:
            AlreadyExistsError: there is something at its path.
            MetadataUnknownError: the outcome is unknown; read again.
        """
        cluster = Cluster(self._address.layout or ZookeeperLayout.HIERARCHICAL, str(uuid.uuid4()))
        await self._nodes.make_folders(self._root)
        acl = self._session.acl
        wanted = {
            "": b"",
            "/available": b"",
            "/available/readonly": b"",
            "/INSTANCEID": cluster.instance_id.encode(),
        }
        made = await self._session.change(
            Transaction([Create(self._root + name, value, acl, 0) for name, value in wanted.items()]),
            f"the cluster {self._address} was made",
        )
        refusal = next((answer for answer in made if isinstance(answer, KazooException)), None)
        if refusal is not None:
            raise AlreadyExistsError(
                f"{self._address} is not empty; `quire metadata format --force` deletes it and "
                "creates a cluster"
            ) from refusal
        await self._nodes.create(f"{self._root}/LAYOUT", layout_text(cluster.layout))
        return cluster

    async def remove(self) -> int:
        """Delete the cluster's metadata: every ledger and log is deleted with it.

        Returns:
            How many znodes were deleted.

        Raises:
            NoClusterError: bookies are registered: stop them first.
        """
        for name in ("available", "available/readonly"):
            alive = [child for child in await self._children(f"{self._root}/{name}") if child != "readonly"]
            if alive:
                raise NoClusterError(
                    f"{len(alive)} bookies are registered at {self._address}, the first is {min(alive)}; stop them"
                    " before the cluster is formatted"
                )
        return await self._remove_tree(self._root)

    async def _remove_tree(self, path: str) -> int:
        removed = 0
        async for _ in Attempts(f"{path} was deleted"):
            for child in await self._children(path):
                removed += await self._remove_tree(f"{path}/{child}")
            request: Any = Delete(path, ANY_VERSION)
            try:
                await self._session.change(request, f"{path} was deleted")
            except NotEmptyError:
                continue
            except NoNodeError:
                return removed
            return removed + 1
        raise AssertionError  # attempts end with an error

    async def _children(self, path: str) -> list[str]:
        try:
            names, _ = await self._session.read(GetChildren(path, None))
        except NoNodeError:
            return []
        return list(names)
