"""Making and removing znodes: their folders with them, and lost responses settled where that can be done.

Source: BookKeeper source, `ZkUtils`: full-path create and delete.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from kazoo.exceptions import KazooException, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create, Delete, Exists

from quire.core.errors import MetadataUnknownError, QuireError
from quire.metadata.retries import settled
from quire.metadata.store import StoreAwayError
from quire.metadata.zookeeper.paths import OWN
from quire.metadata.zookeeper.session import LOST, ZookeeperSession

EPHEMERAL: Final = 1
SEQUENTIAL: Final = 2
ANY_VERSION: Final = -1
ATTEMPTS_MAX: Final = 100


class Nodes:
    """Znodes of one cluster.

    Args:
        session: the session.
        root: the cluster's path; it exists.
    """

    def __init__(self, session: ZookeeperSession, root: str) -> None:
        self._session = session
        self.root = root
        self.own_value = b""  # of the root of Quire's own tree; set when the cluster has been read

    async def create(self, path: str, value: bytes, flags: int = 0) -> str:
        """Make a znode, and the folders that it needs.

        Returns:
            Its path, with its number if it is sequential.

        Raises:
            NodeExistsError: it exists.
            MetadataUnknownError: the outcome is unknown.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                made = await self._session.change(
                    Create(path, value, self._session.acl, flags), f"{path} was made"
                )
            except NoNodeError:
                await self.make_folders(path)
            else:
                return str(made)
        raise MetadataUnknownError(f"the folder of {path} was deleted {ATTEMPTS_MAX} times while it was made")

    async def make_folders(self, path: str) -> None:
        """Make the folders above a path, as Java does: persistent, empty."""
        folder = path.rpartition("/")[0]
        if not folder:
            return
        value = self.own_value if folder == f"{self.root}/{OWN}" else b""
        request, what = Create(folder, value, self._session.acl, 0), f"the folder {folder}"

        async def once(_: bool) -> bool | None:
            try:
                with suppress(NodeExistsError):
                    await self._session.change(request, f"{what} was made")
            except NoNodeError:
                await self.make_folders(folder)
                return None
            return True

        await settled(once, what, "made")

    async def remove_empty(self, folder: str, until: str) -> None:
        """Remove a folder and those above it, below `until`, as far as they are empty."""
        with suppress(QuireError, KazooException):  # not empty, or made again: it stays
            while folder != until and folder.startswith(until):
                await self._session.change(Delete(folder, ANY_VERSION), f"{folder} was removed")
                folder = folder.rpartition("/")[0]

    async def owner(self, path: str) -> int | None:
        """The session that an ephemeral znode belongs to; 0 for a persistent one, None if there is none."""
        stat, _ = await self._session.read(Exists(path, None))
        return None if stat is None else stat.ephemeralOwner

    async def remove_own(self, path: str) -> bool:
        """Remove an ephemeral znode of this session.

        Returns:
            False if it is not yet known whether it is removed; ask again on the next connection.
        """
        try:
            if await self.owner(path) == self._session.session_id:
                await self._session.change(Delete(path, ANY_VERSION), f"{path} was removed")
        except NoNodeError:
            pass
        except (MetadataUnknownError, StoreAwayError, *LOST):
            return False
        return True
