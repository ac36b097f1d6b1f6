"""A bookie's directory is taken for this process, and its cookie compared with the one that the cluster keeps.

Source: `docs/formats/segment.md`, "The directory".
"""

from __future__ import annotations

from quire.bookie.config import BookieConfig
from quire.core.errors import WrongDirectoryError
from quire.core.ids import BookieId
from quire.env.interfaces import Chance, Files
from quire.metadata.bookies import BookieRegistry
from quire.storage.identity import Identity, open_identity


async def take_directory(
    config: BookieConfig, registry: BookieRegistry, cluster_instance: str, files: Files, chance: Chance
) -> Identity:
    """Take the directory; with `config.adopt` one that lost its cookie gets it from the cluster.

    Raises:
        DirectoryInUseError, WrongDirectoryError, DiskFullError, StorageError: see `open_identity`.
    """
    kept: dict[BookieId, bytes] = {}
    if config.adopt:
        kept = {bookie: cookie.value for bookie, cookie in (await registry.list_cookies()).items()}
    name = config.stable_name
    is_taken = config.id_from_address and await registry.read_cookie(name) is not None
    return open_identity(
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
        msg = (
            f"the cookie in {config.directory} differs from the one that the cluster keeps for bookie "
            f"{identity.bookie_id}: this is not the directory of that bookie; start the bookie on its "
            "own directory, or empty this one to begin a new bookie"
        )
        raise WrongDirectoryError(msg, path=str(config.directory), bookie=identity.bookie_id)
    return stored is not None
