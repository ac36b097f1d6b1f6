"""The switch of a cluster's metadata to the newest format: who must be new before, and who may be away.

Source: `docs/formats/metadata.md`, "Upgrade".
"""

from __future__ import annotations

from typing import NamedTuple

from quire.core.errors import RefusedError
from quire.core.ids import BookieId
from quire.metadata.bookies import BookieRegistry
from quire.metadata.checked import CHECKED_FORMAT
from quire.metadata.store import MetadataStore, Upgraded


class Bookies(NamedTuple):
    """The bookies of a cluster, as an upgrade sees them.

    Attributes:
        ready: registered, by a program that says what it can do.
        old: registered, by one that does not.
        away: with a cookie, and not registered in a way that can be read.
    """

    ready: tuple[BookieId, ...]
    old: tuple[BookieId, ...]
    away: tuple[BookieId, ...]


async def bookies_of(store: MetadataStore) -> Bookies:
    """How a cluster's bookies stand."""
    registry = BookieRegistry(store)
    found = await registry.available()
    return Bookies(
        tuple(name for name, info in found.items() if info.announces_features),
        tuple(name for name, info in found.items() if not info.announces_features),
        tuple(sorted(set(await registry.list_cookies()) - set(found))),
    )


async def upgrade_cluster(store: MetadataStore, *, force: bool = False) -> Upgraded | None:
    """Bring the metadata to the newest format, if every bookie's program knows it.

    Args:
        store: the cluster's.
        force: although bookies are away. One of them that comes back with an older program is refused by the store, and
            stays away until it is started with a newer one; no entry is lost by that.

    Returns:
        What was done; None where the store has no format.

    Raises:
        RefusedError: bookies are old, or away without `force`; nothing was changed.
    """
    if store.format is None or store.format >= CHECKED_FORMAT:
        return await store.upgrade()  # finishes one that was cut short
    bookies = await bookies_of(store)
    if bookies.old:
        raise RefusedError(
            f"{_counted(bookies.old)} with a program that is too old: {', '.join(bookies.old)}; start"
            f" {'it' if len(bookies.old) == 1 else 'each of them'} with this version of Quire, then upgrade",
            bookies=list(bookies.old),
        )
    if bookies.away and not force:
        raise RefusedError(
            f"{_counted(bookies.away)} not registered, so their versions are unknown: {', '.join(bookies.away)};"
            " start them with this version of Quire, or use `force`: then an older program of theirs is refused by the"
            " metadata, and they stay away until they are started with a newer one",
            bookies=list(bookies.away),
        )
    return await store.upgrade()


def _counted(names: tuple[BookieId, ...]) -> str:
    return f"{len(names)} bookie{' is' if len(names) == 1 else 's are'}"
