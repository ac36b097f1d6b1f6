"""Whose directory a bookie is started on, and whether its cookie is the one that the cluster keeps. Nothing is written.

Source: `docs/formats/segment.md`, "The directory".
"""

from __future__ import annotations

from quire.bookie.config import BookieConfig
from quire.core.errors import WrongDirectoryError
from quire.core.ids import BookieId
from quire.core.ledger.placement import RandomSource
from quire.env.interfaces import Files
from quire.metadata.bookies import BookieRegistry
from quire.storage.directory.identity import Identity, damaged_cookie, find_identity, is_nearly


async def find_directory(
    config: BookieConfig, registry: BookieRegistry, cluster_instance: str, files: Files, chance: RandomSource
) -> Identity:
    """Find out whose directory it is; with `config.adopt` one that lost its cookie is to get it from the cluster.

    Raises:
        DirectoryInUseError, WrongDirectoryError, StorageError: see `find_identity`.
    """
    kept: dict[BookieId, bytes] = {}
    if config.adopt:
        kept = {bookie: cookie.value for bookie, cookie in (await registry.list_cookies()).items()}
    name = config.stable_name
    is_taken = config.id_from_address and await registry.read_cookie(name) is not None
    return find_identity(
        config.directory,
        name,
        cluster_instance,
        files=files,
        chance=chance,
        adopt=kept,
        taken=(BookieId(name),) if is_taken else (),
    )


async def compare_cookie(config: BookieConfig, registry: BookieRegistry, identity: Identity) -> bool:
    """Whether the cluster knows this bookie: it has been up before.

    Raises:
        WrongDirectoryError: the cookie that is known is not the directory's own.
    """
    stored = await registry.read_cookie(identity.bookie_id)
    if stored is not None and stored.value != identity.cookie:
        if is_nearly(stored.value, identity.cookie):
            raise damaged_cookie(config.directory, "it differs in a few bits from what the cluster keeps")
        msg = (
            f"the cookie in {config.directory} differs from the one that the cluster keeps for bookie "
            f"{identity.bookie_id}: this is not the directory of that bookie; start the bookie on its "
            "own directory, or a new bookie on another one, which is empty"
        )
        raise WrongDirectoryError(msg, path=str(config.directory), bookie=identity.bookie_id)
    return stored is not None
