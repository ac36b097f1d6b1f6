"""Ledger records in a store: compare-and-swap, lost answers, pages."""

from dataclasses import replace

import pytest

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MetadataUnknownError,
    MisuseError,
    NoSuchLedgerError,
)
from quire.core.ids import BookieId
from quire.core.ledger.metadata import TOKEN_KEY, DigestType, new_ledger
from quire.core.ledger.notes import NO_NOTES, AcceptedLoss, BookieHoles, EntryRange, LedgerNotes
from quire.core.ledger.writer_state import Hole
from quire.metadata.keys import ledger_notes_key
from quire.metadata.memory import MemoryStore
from quire.metadata.records import ATTEMPTS_MAX, OF_LEDGERS, RecordStore
from quire.metadata.store import Create, Put, StoreBusyError, VersionConflictError
from quire.metadata.tombstones import end_tombstones
from quire.wire import ledger_metadata
from quire.wire.ledger_notes import encode_notes
from support.records import ForgetfulStore, is_hole, tombstone_of


def record_of(ledger_id, token=1):
    return new_ledger(
        ledger_id,
        ["a", "b", "c"],
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"secret",
        creation_token=token,
    )


async def test_a_ledger_is_created_read_changed_and_deleted():
    store = MemoryStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    ledger_id = await ledgers.next_id()
    version = await ledgers.create(record_of(ledger_id))
    record, found = await ledgers.read(ledger_id)
    assert (record, found) == (record_of(ledger_id), version)
    recovering = record.in_recovery()
    version = await ledgers.write(recovering, version)
    assert await ledgers.read(ledger_id) == (recovering, version)
    with pytest.raises(VersionConflictError) as caught:
        await ledgers.write(record.closed(-1, 0), found)
    assert caught.value.ids == {"ledger_id": ledger_id}
    with pytest.raises(VersionConflictError):
        await ledgers.delete(ledger_id, found)
    await ledgers.delete(ledger_id, version)
    for attempt in (
        ledgers.read(ledger_id),
        ledgers.write(recovering, version),
        ledgers.delete(ledger_id),
    ):
        with pytest.raises(NoSuchLedgerError) as caught:
            await attempt
        assert caught.value.ids == {"ledger_id": ledger_id}


async def test_the_creation_token_is_not_written_again():
    ledgers = RecordStore(MemoryStore(), OF_LEDGERS)
    version = await ledgers.create(record_of(1))
    await ledgers.write(replace(record_of(1), length=0), version)
    assert (await ledgers.read(1))[0].creation_token == 0


@pytest.mark.parametrize("lost", [["before"], ["after"], ["before", "before", "after"], ["after", "after"]])
async def test_a_lost_answer_is_settled_by_reading(lost):
    store = ForgetfulStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    store.lose = list(lost)
    version = await ledgers.create(record_of(1))
    assert (await ledgers.read(1))[1] == version
    store.lose = list(lost)
    version = await ledgers.write(record_of(1).in_recovery(), version)
    assert await ledgers.read(1) == (record_of(1).in_recovery(), version)


async def test_a_ledger_that_is_changed_before_its_lost_answer_is_settled_is_still_ours():
    """What the creator writes next conflicts, as if the other client had come after the answer."""
    ours, others = (
        replace(record_of(1, token), custom=((TOKEN_KEY, token.to_bytes(8, "big")),)) for token in (5, 6)
    )

    class Meanwhile(ForgetfulStore):
        async def multi(self, ops):
            try:
                return await super().multi(ops)
            except MetadataUnknownError:
                await ledgers.write(*await ledgers.read(1))
                raise

    store = Meanwhile()
    ledgers = RecordStore(store, OF_LEDGERS)
    store.lose = ["after"]
    version = await ledgers.create(ours)
    with pytest.raises(VersionConflictError):
        await ledgers.write(ours.closed(-1, 0), version)
    assert (await ledgers.read(1))[0] == replace(ours, creation_token=0)
    store.lose = ["before"]
    with pytest.raises(AlreadyExistsError):
        await ledgers.create(others)


async def test_an_answer_that_stays_lost_is_unknown():
    store = ForgetfulStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    version = await ledgers.create(record_of(1))
    for attempt in (lambda: ledgers.create(record_of(2)), lambda: ledgers.write(record_of(1), version)):
        store.lose = ["before"] * ATTEMPTS_MAX
        with pytest.raises(MetadataUnknownError, match="read the record"):
            await attempt()


async def test_the_ledger_of_another_is_not_taken_for_ours_after_a_lost_answer():
    store = ForgetfulStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    version = await ledgers.create(record_of(1, token=5))
    with pytest.raises(AlreadyExistsError, match="another id"):
        await ledgers.create(record_of(1, token=5))  # no answer was lost: it is the id that is taken
    store.lose = ["before"]
    with pytest.raises(AlreadyExistsError):
        await ledgers.create(record_of(1, token=6))
    await ledgers.write(record_of(1).in_recovery(), version)
    store.lose = ["before"]
    with pytest.raises(MetadataUnknownError, match="before another client changed it"):  # it may have been in
        await ledgers.write(record_of(1).closed(-1, 0), version)


async def test_ids_are_listed_in_order_page_by_page():
    ledgers = RecordStore(MemoryStore(), OF_LEDGERS)
    ids = [0, 1, 9, 10, 11, 2**31, 2**63 - 1]
    for ledger_id in reversed(ids):
        await ledgers.create(record_of(ledger_id))
    assert await ledgers.list() == ids
    assert await ledgers.list(after=9, limit=3) == [10, 11, 2**31]
    assert await ledgers.list(after=2**63 - 1) == []
    page = await ledgers.page(after=1, limit=1)
    assert [(i, ledger_metadata.parse(v.value, i).ledger_id) for i, v in page] == [(9, 9)]


async def test_a_watch_hears_of_one_ledger_only():
    ledgers = RecordStore(MemoryStore(), OF_LEDGERS)
    version = await ledgers.create(record_of(1))
    await ledgers.create(record_of(10))
    async with ledgers.watch(1) as changes:
        assert (await anext(changes)).reread_all
        await ledgers.delete(10)
        await ledgers.write(record_of(1).in_recovery(), version)
        assert await anext(changes) == {OF_LEDGERS.key(1)}


async def test_values_and_keys_that_are_none_of_ours_are_named():
    store = MemoryStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    await store.create(OF_LEDGERS.key(7), b"junk")
    with pytest.raises(CorruptMetadataError, match="ledger 7"):
        await ledgers.read(7)
    assert await ledgers.list() == [7]
    await store.create("ledgers/x", b"")
    with pytest.raises(CorruptMetadataError, match="ledgers/x"):
        await ledgers.list()
    for wrong in (-1, 2**63):
        with pytest.raises(MisuseError):
            await ledgers.read(wrong)


# --- notes ------------------------------------------------------------------------------------------------------

NOTES = LedgerNotes(
    holes=(BookieHoles(BookieId("b"), (EntryRange(0, 9, 3, 0b101),)),),
    losses=(AcceptedLoss((EntryRange(5, 5),), 1, "me", (BookieId("gone"),)),),
)
EACH_FORMAT = pytest.mark.parametrize("stored_format", [1, 2, 3])


def noted_record(ledger_id, stored_format):
    record = replace(record_of(ledger_id), format_version=stored_format)
    return ledger_metadata.parse(ledger_metadata.serialize(record), ledger_id)


@EACH_FORMAT
async def test_notes_are_written_with_the_record_and_read_with_it(stored_format):
    store = MemoryStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    record = noted_record(1, stored_format)
    version = await ledgers.create(record)
    assert await ledgers.read_with_notes(1) == (record, NO_NOTES, version)
    later = await ledgers.write_with_notes(record.closed(9, 90), NOTES, version)
    found, notes, seen = await ledgers.read_with_notes(1)
    assert (notes, seen) == (NOTES, later)
    assert (found.last_entry, found.format_version) == (9, stored_format)
    assert (await store.get(ledger_notes_key(1)) is not None) == (stored_format == 1)
    with pytest.raises(VersionConflictError, match="version"):
        await ledgers.write_with_notes(found, NO_NOTES, version)
    assert (await ledgers.read_with_notes(1))[1] == NOTES
    less = replace(NOTES, losses=())
    later = await ledgers.write_with_notes(found, less, later)
    found, notes, _ = await ledgers.read_with_notes(1)
    assert notes == less
    # A writer that knows of no notes leaves them alone.
    later = await ledgers.write(replace(found, length=91), later)
    found, notes, _ = await ledgers.read_with_notes(1)
    assert (notes, found.length) == (less, 91)
    await ledgers.write_with_notes(found, NO_NOTES, later)
    assert (await ledgers.read_with_notes(1))[1] == NO_NOTES
    assert [key for key, _ in await store.list("")] == [OF_LEDGERS.key(1)]
    await ledgers.delete(1)
    await end_tombstones(store, [(1, (await tombstone_of(ledgers, 1))[1])])
    for attempt in (ledgers.read_with_notes(1), ledgers.write_with_notes(found, NOTES, later)):
        with pytest.raises(NoSuchLedgerError):
            await attempt
    assert await store.list("") == []


@EACH_FORMAT
@pytest.mark.parametrize("faults", [["before"], ["after"], ["before", "after"], ["after", "before"]])
async def test_a_lost_answer_about_notes_is_settled_by_reading(stored_format, faults):
    store = ForgetfulStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    record = noted_record(1, stored_format)
    version = await ledgers.create(record)
    store.lose = list(faults)
    later = await ledgers.write_with_notes(record, NOTES, version)
    found, notes, seen = await ledgers.read_with_notes(1)
    assert (notes, seen, found.fragments) == (NOTES, later, record.fragments)


async def test_another_ones_notes_are_not_taken_for_our_own():
    """The records are equal, the notes are not: the answer that was lost may have been a yes before them."""

    class Overtaken(ForgetfulStore):
        async def multi(self, ops):
            if self.lose:
                self.lose.clear()
                await super().multi(
                    [ops[0], Create(ledger_notes_key(1), encode_notes(replace(NOTES, holes=()), 1))]
                )
                raise MetadataUnknownError("lost")
            return await super().multi(ops)

    store = Overtaken()
    ledgers = RecordStore(store, OF_LEDGERS)
    record = noted_record(1, 1)
    version = await ledgers.create(record)
    store.lose = ["overtaken"]
    with pytest.raises(MetadataUnknownError):
        await ledgers.write_with_notes(record, NOTES, version)
    assert (await ledgers.read_with_notes(1))[1] == replace(NOTES, holes=())


async def test_a_ledger_that_takes_the_id_of_another_does_not_get_its_notes():
    store = ForgetfulStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    record = noted_record(1, 1)
    await ledgers.write_with_notes(record, NOTES, await ledgers.create(record))
    with pytest.raises(AlreadyExistsError):
        await ledgers.create(record)
    assert (await ledgers.read_with_notes(1))[1] == NOTES
    await store.delete(OF_LEDGERS.key(1))  # as Java does
    await ledgers.create(record)
    assert (await ledgers.read_with_notes(1))[1] == NO_NOTES


async def test_notes_of_one_moment_are_read_or_none():
    """Between the reads another one changes record and notes, each time."""

    class Restless(MemoryStore):
        changing = False

        async def get(self, key):
            found = await super().get(key)
            if self.changing and key == ledger_notes_key(1):
                record = await super().get(OF_LEDGERS.key(1))
                await self.multi([Put(OF_LEDGERS.key(1), record.value, record.version)])
            return found

    store = Restless()
    ledgers = RecordStore(store, OF_LEDGERS)
    record = noted_record(1, 1)
    await ledgers.write_with_notes(record, NOTES, await ledgers.create(record))
    store.changing = True
    with pytest.raises(StoreBusyError, match="ledger 1 was changed 5 times"):
        await ledgers.read_with_notes(1)


@EACH_FORMAT
async def test_notes_that_are_not_possible_change_nothing(stored_format):
    ledgers = RecordStore(MemoryStore(), OF_LEDGERS)
    record = noted_record(1, stored_format)
    version = await ledgers.create(record)
    many = tuple(EntryRange(10 * i, 10 * i + 5, 3, 2) for i in range(5000))
    for holes, words in (((), "no range"), (many, "may have 65536")):
        with pytest.raises(MisuseError, match=words):
            await ledgers.write_with_notes(record, LedgerNotes((BookieHoles(BookieId("b"), holes),)), version)
    assert await ledgers.read_with_notes(1) == (record, NO_NOTES, version)


@EACH_FORMAT
async def test_a_close_and_its_holes_are_one_write(stored_format):
    store = MemoryStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    record = noted_record(1, stored_format)
    ensemble = record.last_fragment.ensemble
    version = await ledgers.create(record)
    holes = [Hole(0, ensemble[0], 3, 5)]
    later = await ledgers.write_with_holes(record.closed(9, 90), holes, version)
    found, notes, seen = await ledgers.read_with_notes(1)
    assert (found.last_entry, seen) == (9, later)
    assert is_hole(notes, ensemble[0], 3)
    # What is found later joins what stands there; what stands there already is not written again.
    await ledgers.add_holes(1, [Hole(0, ensemble[0], 6, 6)])
    await ledgers.add_holes(1, [Hole(0, ensemble[0], 3, 6)])
    _, notes, seen = await ledgers.read_with_notes(1)
    assert [(hole.bookie, hole.ranges[0][:2]) for hole in notes.holes] == [(ensemble[0], (3, 6))]
    assert len([key for key, _ in await store.list("")]) == 1 + (stored_format == 1)
    with pytest.raises(VersionConflictError):
        await ledgers.write_with_holes(found, [], version)
    await ledgers.delete(1)
    with pytest.raises(NoSuchLedgerError):
        await ledgers.add_holes(1, holes)


async def test_holes_are_not_put_into_a_record_that_is_being_recovered():
    ledgers = RecordStore(MemoryStore(), OF_LEDGERS)
    record = noted_record(1, 3)
    version = await ledgers.write(record.in_recovery(), await ledgers.create(record))
    await ledgers.add_holes(1, [Hole(0, record.last_fragment.ensemble[0], 0, 0)])
    assert (await ledgers.read_with_notes(1))[1:] == (NO_NOTES, version)
