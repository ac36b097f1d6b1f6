"""A stream's world that begins in the middle: in term 2, with a fragment that is decided, and something of term 1 left over.

It is what comes of this: the first client appends entry 0, which only the bookie that is the spare now has stored. The second
takes the stream over without that bookie, and has its own entry 0 acknowledged. Then it replaces the last bookie by the spare.
Where terms only fence its entry 0 is the no-op, the acknowledged one is entry 1, and the spare has two of the first client.

Source: docs/protocol/streams.md, "An entry's name".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quire.core.errors import MisuseError
from quire.core.ids import NO_ENTRY
from quire.core.ledger.effects import TakenOver
from quire.core.ledger.metadata import LedgerMetadata
from quire_testing.explorer.clients import ClientState, bookie_name
from quire_testing.explorer.stream_bookies import StreamBookie
from quire_testing.explorer.stream_clients import Written

if TYPE_CHECKING:
    from quire_testing.explorer.stream_world import StreamWorld


def changed(
    world: StreamWorld, created: LedgerMetadata
) -> tuple[LedgerMetadata, list[StreamBookie], list[ClientState]]:
    """The record, the bookies and the clients of such a world.

    Args:
        world: with a spare, a client that did not create the stream, and bookies that store every entry.
        created: the record of the new stream.
    """
    c, driver = world.configuration, world.driver
    if not (c.bookies > c.ensemble == c.write_quorum and c.clients):
        msg = "a stream that begins with a changed ensemble has a spare, a second client, and Qw = E"
        raise MisuseError(msg)
    spare = c.ensemble
    opened = created.taken_over(2, 2).opened(NO_ENTRY, created.fragments)
    ensemble = [*opened.last_fragment.ensemble[:-1], bookie_name(spare)]
    last = int(c.fencing)
    record = opened.with_ensemble(last + 1, ensemble)
    bookies = [StreamBookie()] * c.bookies
    for number in range(c.ensemble + 1):
        term = 1 if number == spare else 2
        add = ("add", min(number, c.ensemble - 1), 1, 0, last, NO_ENTRY, term)
        bookies[number], _, _ = world.bookie_driver.deliver(bookies[number], 0, add, waits=False)
    if c.fencing:
        join = ("truncate", c.ensemble - 1, spare, last + 1, False, NO_ENTRY, 2)
        bookies[spare], _, _ = world.bookie_driver.deliver(bookies[spare], 0, join, waits=False)
    first = driver.with_past(driver.nobody(), (Written(1, 0, last),))
    second = driver.with_past(
        driver.writing(replace(driver.nobody(), begun=1), TakenOver(record, 0, last, last + 1, ())),
        (Written(2, last, last),),
        acked=((last, 2),),
    )
    return record, bookies, [first, second, *[driver.nobody()] * (c.clients - 1)]
