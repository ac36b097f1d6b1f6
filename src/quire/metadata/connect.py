"""From a cluster's URI to its metadata store.

Source: docs/metadata.md: the URIs `sqlite:PATH`, `memory:NAME`, `zk://…`, `etcd://…`.
"""

from __future__ import annotations

from quire.core.errors import AlreadyExistsError, MisuseError, NoClusterError
from quire.distribution import Extra, require
from quire.env.real import expanded
from quire.metadata.memory import MemoryStore, space
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import MetadataStore
from quire.metadata.zookeeper.options import is_zookeeper, parse_uri

FORMS = (
    "sqlite:PATH (all processes of one machine), zk://HOST:2181/ledgers (ZooKeeper), etcd://HOST:2379/ledgers (etcd) or"
    " memory:NAME (one process)"
)


async def open_store(uri: str, *, create: bool = False) -> MetadataStore:
    """Open the metadata store of a cluster.

    Args:
        uri: the cluster's name, as in `--cluster` and `QUIRE_CLUSTER`.
        create: make the store where it is missing; a memory store is always made.

    Raises:
        NoClusterError: there is no such store, it cannot be reached, or the URI is not one.
        CorruptMetadataError: it is damaged, or not ours.
        MissingExtraError: the packages for such a store are not installed.
    """
    scheme, colon, rest = uri.partition(":")
    match scheme if colon else "":
        case "sqlite":
            path = rest.removeprefix("//")
            if not path:
                raise NoClusterError(
                    f"{uri!r} names no file; write sqlite:PATH, as in sqlite:/data/quire/metadata.db"
                )
            return await SqliteStore.open(expanded(path), create=create)
        case "memory":
            return MemoryStore(space(rest))
        case _ if is_zookeeper(scheme):
            require(Extra.ZOOKEEPER, "A cluster in ZooKeeper")
            from quire.metadata.zookeeper.store import ZookeeperStore

            return await ZookeeperStore.open(parse_uri(uri), create=create)
        case "etcd":
            require(Extra.ETCD, "A cluster in etcd")
            from quire.metadata.etcd.options import parse_uri as parse_etcd_uri
            from quire.metadata.etcd.store import EtcdStore

            return await EtcdStore.open(parse_etcd_uri(uri), create=create)
        case _:
            raise NoClusterError(f"{uri!r} is not the URI of a cluster; use {FORMS}")


async def format_store(uri: str, *, force: bool = False) -> str:
    """Make the metadata store of a new cluster.

    Args:
        uri: the cluster's name.
        force: delete what is there first, with every ledger and log in it; ZooKeeper and etcd only.

    Returns:
        The new cluster's instance id.

    Raises:
        AlreadyExistsError: there is a cluster, and `force` is not set.
        MisuseError: `force` for a store of another kind.
        NoClusterError: the store cannot be reached, or bookies are registered in it.
        MissingExtraError: the packages for such a store are not installed.
    """
    scheme, _, path = uri.partition(":")
    if is_zookeeper(scheme):
        require(Extra.ZOOKEEPER, "A cluster in ZooKeeper")
        from quire.metadata.zookeeper.store import format_cluster

        return (await format_cluster(parse_uri(uri), force=force)).instance_id
    if scheme == "etcd":
        require(Extra.ETCD, "A cluster in etcd")
        from quire.metadata.etcd.options import parse_uri as parse_etcd_uri
        from quire.metadata.etcd.store import format_cluster as format_etcd

        return await format_etcd(parse_etcd_uri(uri), force=force)
    if force:
        raise MisuseError(f"`force` is for ZooKeeper and etcd; to format {uri!r}, remove the file first")
    file = expanded(path.removeprefix("//"))
    if scheme == "sqlite" and file.exists() and file.stat().st_size:
        raise AlreadyExistsError(f"a cluster already exists at {uri!r}; remove the file to format it")
    async with await open_store(uri, create=True) as store:
        return store.instance_id
