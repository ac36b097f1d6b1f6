"""`quire bookie forget`: a bookie that will not come back is no longer one of the cluster's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from quire.cli.options import ClusterOption, JsonOption, cluster_uri, run
from quire.cli.output import Output

if TYPE_CHECKING:
    from quire.cli.toolbox import Toolbox
    from quire.core.ids import BookieId

NAMED_MAX: Final = 5
"""So many of the ledgers that name it are shown."""


def forget(
    bookie_id: Annotated[
        str, typer.Argument(metavar="BOOKIE", help="Its id, as `quire cluster bookies` shows it.")
    ],
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the cookie of a bookie that will not come back, so that nobody waits for it.

    Refused while it is registered, and while the record of a ledger names it: its copies are to be made elsewhere first.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        from quire.cli.toolbox import open_toolbox
        from quire.core.errors import RefusedError
        from quire.core.ids import BookieId
        from quire.env.real import RealClock
        from quire.metadata.repairs import RepairStore

        async with open_toolbox(uri) as tools:
            bookie = BookieId(bookie_id)
            if bookie in await tools.registry.available():
                raise RefusedError(f"bookie {bookie} is registered: stop it first", bookie=bookie)
            cookie = await tools.registry.read_cookie(bookie)
            if cookie is None:
                raise RefusedError(
                    f"there is no bookie of this name: {bookie}; `quire cluster bookies` lists them",
                    bookie=bookie,
                )
            await _refuse_named(tools, bookie)
            await tools.registry.delete_cookie(bookie, cookie.version)
            marks = RepairStore(tools.store, RealClock(), "quire bookie forget")
            away = (await marks.away()).get(bookie)
            if away is not None:
                await marks.end_away(bookie, away)
        out.result({"bookie": bookie_id, "forgotten": True}, f"Bookie {bookie_id} is forgotten.")

    run(work())


async def _refuse_named(tools: Toolbox, bookie: BookieId) -> None:
    """Refuse a bookie that the record of a ledger names, or may name.

    Raises:
        RefusedError: with the first of these ledgers.
    """
    from quire.core.errors import CorruptMetadataError, RefusedError
    from quire.metadata.keys import ledger_of
    from quire.metadata.ledgers import PREFIX
    from quire.metadata.paging import every_key
    from quire.wire import ledger_metadata

    named: list[int] = []
    async for key, stored in every_key(tools.store, PREFIX):
        ledger_id = ledger_of(key)
        if ledger_id is None:
            continue
        try:
            record = ledger_metadata.parse(stored.value, ledger_id)
        except CorruptMetadataError as error:
            raise RefusedError(
                f"bookie {bookie} may be named by a ledger whose record cannot be read: {error.message}",
                bookie=bookie,
                ledger_id=ledger_id,
            ) from error
        if any(bookie in fragment.ensemble for fragment in record.fragments):
            named.append(ledger_id)
    if named:
        some = ", ".join(map(str, named[:NAMED_MAX])) + (" and others" if len(named) > NAMED_MAX else "")
        raise RefusedError(
            f"{len(named)} ledgers name bookie {bookie}: {some}. Wait until auto-recovery has put other bookies "
            f"in its place, or `quire cluster repair --bookie {bookie}`",
            bookie=bookie,
            ledgers=len(named),
        )
