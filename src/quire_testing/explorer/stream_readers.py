"""Readers in a stream's world: each has the record that it read once, and reads it again only for a LAC that it may not use.

Source: docs/protocol/streams.md, "The LAC".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from quire.core.transcript import record_text
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.parts import Label
from quire_testing.explorer.stream_bookies import value_at
from quire_testing.explorer.stream_fencing import members_of
from quire_testing.explorer.stream_parts import StreamReader

if TYPE_CHECKING:
    from quire_testing.explorer.stream_world import Move, State, StreamWorld


def reads(world: StreamWorld, state: State, which: int) -> Iterator[Move]:
    """A reader opens the stream once; hears a LAC of a bookie; reads an entry from a bookie under its record's ranges."""
    reader = world.readers.parts[state[world.at.reader + which]]
    record = world.stores.parts[state[world.at.store]].record
    if reader.record is None:
        yield _reader_move(world, state, which, reader._replace(record=record), "opens", record_text(record))
        return
    # An id alone is not the entry's name where terms only fence: only those are asked that the record names.
    ids = range(reader.lac + 1)
    asked = [members_of(reader.record, entry) for entry in ids] if reader.record.only_fences else None
    for number in range(world.n):
        bookie, name = world.bookies.parts[state[number]], bookie_name(number)
        lac, lac_term = bookie.known.lac, bookie.known.lac_term
        if lac > reader.lac:
            if world.rules.may_use_lac(lac_term, reader.record):
                after = reader._replace(lac=lac)
                yield _reader_move(world, state, which, after, f"hears LAC {lac} of term {lac_term}", name)
            elif world.rules.may_use_lac(lac_term, record):
                after = reader._replace(lac=lac, record=record)
                command = f"hears LAC {lac} of term {lac_term}, reads the record"
                yield _reader_move(world, state, which, after, command, name)
        for entry in ids:
            if asked is not None and number not in asked[entry]:
                continue
            value = value_at(bookie, entry, reader.record)
            if value is not None and value not in reader.seen:
                after = reader._replace(seen=tuple(sorted({*reader.seen, value})))
                yield _reader_move(world, state, which, after, f"reads {entry} of term {value[1]}", name)


def _reader_move(
    world: StreamWorld, state: State, which: int, after: StreamReader, command: str, other: str
) -> Move:
    new = list(state)
    new[world.at.reader + which] = world.readers.number(after)
    kind = command.split(maxsplit=1)[0]
    return Label(world.reader_names[which], f"{command}: {other}", (), "", kind), tuple(new)
