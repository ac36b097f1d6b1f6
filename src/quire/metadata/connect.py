"""From a cluster's URI to its metadata store.

Source: docs/formats of this project name the URIs: `sqlite:PATH`, `memory:NAME`, `zk://…`, `etcd://…`.
"""

from __future__ import annotations

from pathlib import Path

from quire.core.errors import NoClusterError
from quire.metadata.memory import MemoryStore, space
from quire.metadata.sqlite import SqliteStore
from quire.metadata.store import MetadataStore

FORMS = "sqlite:PATH (all processes of one machine) or memory:NAME (one process)"


async def open_store(uri: str, *, create: bool = False) -> MetadataStore:
    """Open the metadata store of a cluster.

    Args:
        uri: the cluster's name, as in `--cluster` and `QUIRE_CLUSTER`.
        create: make the store where it is missing; a memory store is always made.

    Raises:
        NoClusterError: there is no such store, it cannot be reached, or the URI is not one.
        CorruptMetadataError: it is damaged, or not ours.
    """
    scheme, colon, rest = uri.partition(":")
    match scheme if colon else "":
        case "sqlite":
            path = rest.removeprefix("//")
            if not path:
                raise NoClusterError(
                    f"{uri!r} names no file; write sqlite:PATH, as in sqlite:/data/quire/metadata.db"
                )
            return await SqliteStore.open(Path(path).expanduser(), create=create)
        case "memory":
            return MemoryStore(space(rest))
        case "zk" | "etcd":
            raise NoClusterError(
                f"{uri!r} cannot be opened: the {scheme} driver is not built yet; use {FORMS}"
            )
        case _ if scheme.startswith("zk+"):
            raise NoClusterError(f"{uri!r} cannot be opened: the zk driver is not built yet; use {FORMS}")
        case _:
            raise NoClusterError(f"{uri!r} is not a cluster's name; use {FORMS}")
