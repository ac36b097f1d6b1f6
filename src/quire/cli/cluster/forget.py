"""`quire bookie forget`: a bookie that will not come back is no longer one of the cluster's."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

from quire.cli.console.opening import with_client
from quire.cli.console.options import argument
from quire.cli.console.output import Output, counted

if TYPE_CHECKING:
    from quire.core.ids import BookieId
    from quire.log.client import QuireClient

NAMED_MAX: Final = 5
"""Most of the ledgers that name it that are shown, and of the streams."""


@with_client(frames=False)
async def forget(
    client: QuireClient,
    out: Output,
    bookie_id: Annotated[str, argument("BOOKIE", "Its id, as `quire cluster bookies` shows it.")],
) -> None:
    """Remove the cookie of a bookie that will not come back, so that nothing waits for it.

    Refused while it is registered, and while the record of a ledger or stream names it: its copies are to be made elsewhere first.
    """
    from quire.core.errors import RefusedError
    from quire.core.ids import BookieId
    from quire.core.repair.audit_effects import CountedState

    bookie = BookieId(bookie_id)
    await _refuse_registered(client, bookie)
    cookie = await client.bookies.registry.read_cookie(bookie)
    if cookie is None:
        raise RefusedError(
            f"there is no bookie of this name: {bookie}; `quire cluster bookies` lists them",
            bookie=bookie,
        )
    await _refuse_named(client, bookie)
    await _refuse_registered(client, bookie)  # the look at all records may have taken long
    await client.bookies.registry.delete_cookie(bookie, cookie.version)
    marks = client.records.repairs("quire bookie forget")
    for state in CountedState:
        if (counted := (await marks.times(state)).get(bookie)) is not None:
            await marks.end_count(state, bookie, counted)
    out.result({"bookie": bookie_id, "forgotten": True}, f"Bookie {bookie_id} is forgotten.")


async def _refuse_registered(client: QuireClient, bookie: BookieId) -> None:
    from quire.core.errors import RefusedError

    if bookie in await client.bookies.registry.available():
        raise RefusedError(f"bookie {bookie} is registered: stop it first", bookie=bookie)


async def _refuse_named(client: QuireClient, bookie: BookieId) -> None:
    """Refuse a bookie that the record of a ledger or stream names, or may name.

    Raises:
        RefusedError: with the first of these.
    """
    from quire.core.errors import CorruptMetadataError, RefusedError

    ledgers: list[int] = []
    streams: list[int] = []
    async for listed in client.records.listed():
        try:
            record = listed.parsed()
        except CorruptMetadataError as error:
            what = "stream" if listed.is_stream else "ledger"
            raise RefusedError(
                f"bookie {bookie} may be named by a {what} whose record cannot be read: {error.message}",
                bookie=bookie,
                ledger_id=listed.ledger_id,
            ) from error
        if any(bookie in fragment.ensemble for fragment in record.fragments):
            (streams if listed.is_stream else ledgers).append(listed.ledger_id)
    if ledgers or streams:
        names = await _names_of(client, streams[:NAMED_MAX])
        shown = [
            f"{counted(len(ids), kind)} ({', '.join(map(str, some))}{' and others' if len(ids) > NAMED_MAX else ''})"
            for kind, ids, some in (("ledger", ledgers, ledgers[:NAMED_MAX]), ("stream", streams, names))
            if ids
        ]
        raise RefusedError(
            f"bookie {bookie} is named by {' and '.join(shown)}. Wait until auto-recovery has put other bookies "
            f"in its place, or `quire cluster repair --bookie {bookie}`",
            bookie=bookie,
            ledgers=len(ledgers),
            streams=len(streams),
        )


async def _names_of(client: QuireClient, streams: list[int]) -> list[str]:
    """The names of streams; the id of one without a name that can be read."""
    from quire.core.errors import CorruptMetadataError
    from quire.metadata.keys import STREAM_NAMES
    from quire.metadata.paging import every_key
    from quire.wire.stream_metadata import decode_stream_name

    found = {stream: str(stream) for stream in streams}
    if found:
        async for key, stored in every_key(client.store, STREAM_NAMES):
            name = key.removeprefix(STREAM_NAMES)
            with suppress(CorruptMetadataError):
                stream = int(decode_stream_name(stored.value, name)[0])
                if stream in found:
                    found[stream] = name
    return [*found.values()]
