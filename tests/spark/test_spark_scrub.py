"""Scrub and audit against damage that the test itself did: all of it is found, and nothing else."""

import asyncio
import json
import random
from dataclasses import replace

import pytest

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester
from quire.core.answers import Answer
from quire.core.errors import NoSuchStreamError
from quire.core.ids import EntryId
from quire.metadata.records import OF_LEDGERS
from quire.metadata.repairs import RepairStore
from quire.metadata.store import Put
from quire.spark.jobs import scrub
from quire.spark.jobs.__main__ import run_lines
from quire.wire.entries import copies
from quire.wire.entry import Entry
from quire.wire.requests import AddRun

pytestmark = pytest.mark.spark

ENTRIES = 200
TOGETHER = 20
FLIPS = 100


def content(ledger_id, entry_id):
    """A payload that no other entry has."""
    chance = random.Random(ledger_id * 10**6 + entry_id)
    return b"<%d:%d>" % (ledger_id, entry_id) + chance.randbytes(90 + entry_id % 40)


async def fill(client, ledgers, **quorums):
    made = []
    for _ in range(ledgers):
        async with await client.create_ledger(**quorums) as ledger:
            for start in range(0, ENTRIES, TOGETHER):
                ids = range(start, start + TOGETHER)
                await ledger.append_many([content(ledger.ledger_id, entry_id) for entry_id in ids])
        made.append(ledger.ledger_id)
    return made


class Disk:
    """A bookie's files, to be damaged."""

    def __init__(self, directory):
        self._files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    def flip(self, payload, chance):
        """Change one bit of a payload where it is stored; whether it is."""
        for path, stored in self._files.items():
            if (at := stored.find(payload)) >= 0:
                place = at + chance.randrange(len(payload))
                with path.open("r+b") as file:
                    file.seek(place)
                    file.write(bytes([stored[place] ^ 1 << chance.randrange(8)]))
                return True
        return False


def wrong(spark, table):
    rows = spark.read.parquet(table).where("verdict != 'ok'").collect()
    return [
        (row["verdict"], row["bookie"], row["ledger"], range(row["first_entry"], row["last_entry"] + 1))
        for row in rows
    ]


def damage(cluster, ledgers, directories, flips):
    """Flip so many bits, each in another record; returns (bookie, ledger, record) of each."""
    chance = random.Random(len(ledgers))
    disks = [Disk(directory) for directory in directories]
    ids = [bookie.bookie_id for bookie in cluster.bookies]
    done = set()
    while len(done) < flips:
        place, ledger = chance.randrange(len(disks)), chance.choice(ledgers)
        entry = chance.randrange(ENTRIES)
        one = (ids[place], ledger, entry // TOGETHER)
        if one not in done and disks[place].flip(content(ledger, entry), chance):
            done.add(one)
    return done


def records(found):
    """(bookie, ledger, record) of the entries of some findings: those that came together are one record on the disk."""
    return {(bookie, ledger, e // TOGETHER) for _, bookie, ledger, entries in found for e in entries}


def test_every_bit_that_rots_under_running_bookies_is_found_and_nothing_else(spark, four_bookies, tmp_path):
    ledgers = four_bookies.run(fill, 2, ensemble_size=4, write_quorum=3)
    ledgers += four_bookies.run(fill, 2)
    table = str(tmp_path / "before")
    work = scrub.plan(four_bookies.uri)
    report = scrub.run(spark, work, table)
    assert (report.ok, report.found, report.copies) == (True, {}, 4 * ENTRIES * 3)
    assert report.bytes == 3 * sum(len(content(ledger, e)) for ledger in ledgers for e in range(ENTRIES))
    again = scrub.run(spark, work, table)
    assert (again.units, again.units_before, again.copies) == (0, len(work.units), report.copies)

    four_bookies.with_bookies_stopped(lambda _: None)  # what they wrote last is no longer in memory
    done = damage(four_bookies, ledgers, [b.config.directory for b in four_bookies.bookies], FLIPS)
    table = str(tmp_path / "after")
    told = []
    report = scrub.run(
        spark,
        scrub.plan(four_bookies.uri, unit_bytes=40_000),
        table,
        progress=lambda *done: told.append(done),
    )
    # A record whose checksum does not fit is unknown to its bookie as a whole.
    found = wrong(spark, table)
    assert records(found) == done
    assert {verdict for verdict, *_ in found} == {"corrupt"}
    assert not report.ok
    assert told[-1] == (report.units, report.units)
    assert report.units > len(four_bookies.bookies)


def test_bits_that_rot_while_a_bookie_is_down_are_found_too(spark, own_cluster, tmp_path):
    ledgers = own_cluster.run(fill, 2)
    done = set()
    own_cluster.with_bookies_stopped(lambda where: done.update(damage(own_cluster, ledgers, where, 5)))
    report = scrub.run(spark, scrub.plan(own_cluster.uri), str(tmp_path / "table"))
    found = wrong(spark, str(tmp_path / "table"))
    assert {verdict for verdict, *_ in found} == {"corrupt"}
    assert records(found) == done
    assert report.found == {"corrupt": len(done) * TOGETHER}


async def marks_of(client):
    """What is marked for repair, by ledger."""
    page = await RepairStore(client.store, client.clock, "test").marks_page()
    return {
        int(ledger): [(one.reason.name, one.bookie, *one.entries[:2]) for one in stored.mark.marks]
        for ledger, stored in page
    }


async def fill_open(client):
    ledger = await client.create_ledger()
    await ledger.append(b"of a ledger that is still written")
    await ledger.abandon()


def test_a_bookie_that_is_away_is_unknown_and_one_that_never_got_its_copies_is_short_of_them(
    spark, four_bookies, tmp_path
):
    [ledger_id] = four_bookies.run(fill, 1)
    four_bookies.run(fill_open)

    async def name_another_bookie(client):
        # What a repair that forgot to copy leaves: apache/bookkeeper issue 2615.
        record, version = await client.records.ledgers.read(ledger_id)
        [fragment] = record.fragments
        [other] = {b.bookie_id for b in four_bookies.bookies} - set(fragment.ensemble)
        ensemble = (other, *fragment.ensemble[1:])
        changed = replace(record, fragments=(replace(fragment, ensemble=ensemble),))
        await client.records.ledgers.write(changed, version)
        return ensemble

    short, _, away = four_bookies.run(name_another_bookie)
    four_bookies.stop_bookie([b.bookie_id for b in four_bookies.bookies].index(away))
    for mode in ("audit", "scrub"):
        table = str(tmp_path / mode)
        work = scrub.plan(four_bookies.uri, audit=mode == "audit", mark=mode == "scrub", timeout_ms=2000)
        assert four_bookies.run(marks_of) == {}
        report = scrub.run(spark, work, table)
        assert {(verdict, b) for verdict, b, *_ in wrong(spark, table)} == {
            ("missing", short),
            ("unknown", away),
        }
        assert (report.ok, report.open_ledgers, report.ledgers) == (False, 1, 1)
        assert report.found == {"missing": ENTRIES, "unknown": ENTRIES}
        assert report.marked == (mode == "scrub")
    assert four_bookies.run(marks_of) == {ledger_id: [("HOLE", short, 0, ENTRIES - 1)]}


def test_a_copy_that_says_something_else_is_unlike_the_others(spark, own_cluster, tmp_path):
    async def write_two_versions(client):
        """A ledger whose third bookie got another content for one entry, digest and all, from a second writer."""
        ledger = await client.create_ledger()
        await ledger.append_many([b"the same %d" % i for i in range(10)])
        record = await client.ledger_metadata(ledger.ledger_id)
        access = LedgerAccess.of(record)
        odd = record.fragments[0].ensemble[2]
        entry = Entry(record.ledger_id, EntryId(4), EntryId(3), 11 * 5, b"other words")
        [run] = copies([entry], access.digest, 1000)
        sink = Sink()
        add = AddRun(access, run.body, run.body_crc, 3, recovery=True)
        client.bookies.add_run(odd, add, sink, 0, timeout_ms=5000)
        assert await sink.answer is Answer.OK
        await ledger.close()
        return ledger.ledger_id, odd

    def scrubbed(table, **more):
        work = scrub.plan(own_cluster.uri, unit_bytes=1, timeout_ms=2000)
        return scrub.run(spark, work, str(tmp_path / table), **more)

    ledger_id, odd = own_cluster.run(write_two_versions)
    report = scrubbed("table")
    assert wrong(spark, str(tmp_path / "table")) == [("unlike", odd, ledger_id, range(4, 5))]
    assert (report.ok, report.found, report.copies) == (False, {"unlike": 1}, 30)
    # What is new since is compared as well, and what was compared already counts.
    another, other_odd = own_cluster.run(write_two_versions)
    assert scrubbed("table").found == {"unlike": 2}
    both = [("unlike", odd, ledger_id, range(4, 5)), ("unlike", other_odd, another, range(4, 5))]
    assert sorted(wrong(spark, str(tmp_path / "table")), key=lambda row: row[2]) == both

    def leave(done, of):
        if done == of:
            own_cluster.stop_bookie([b.bookie_id for b in own_cluster.bookies].index(odd))

    # A bookie that is away when copies are compared does not make them alike.
    report = scrubbed("away", progress=leave)
    assert not report.ok
    assert ("unlike", odd, ledger_id, range(10)) in wrong(spark, str(tmp_path / "away"))


def test_entries_of_a_stream_are_looked_for_under_their_terms(spark, own_cluster, tmp_path):
    async def write(client):
        """A stream of two terms; a bookie has another content for one entry, and an entry of the earlier term where it is none."""
        stream = client.unbounded_ledger("s")
        await stream.create()
        for term in (2, 3):
            async with await stream.open_writer() as writer:
                await asyncio.gather(*(writer.append(b"%d of term %d" % (i, term)) for i in range(20)))
        record = await stream.close()
        assert [int(record.origin_of(entry_id)) for entry_id in (4, 25)] == [2, 3]
        odd, access = record.fragments[0].ensemble[2], LedgerAccess.of(record, record.term)
        for entry_id in (4, 25):
            entry = Entry(record.ledger_id, EntryId(entry_id), EntryId(3), 11 * 5, b"other words")
            [run] = copies([entry], access.digest, 1000, origin_term=2)
            sink = Sink()
            add = AddRun(access, run.body, run.body_crc, 3, recovery=True, term=record.term)
            client.bookies.add_run(odd, add, sink, 0, timeout_ms=5000)
            assert await sink.answer is Answer.OK
        return record.ledger_id, odd

    stream_id, odd = own_cluster.run(write)
    work = scrub.plan(own_cluster.uri)
    report = scrub.run(spark, work, str(tmp_path / "scrub"))
    assert wrong(spark, str(tmp_path / "scrub")) == [("unlike", odd, stream_id, range(4, 5))]
    assert (report.ok, report.found, report.copies, report.ledgers) == (False, {"unlike": 1}, 120, 1)
    with pytest.raises(NoSuchStreamError):
        scrub.plan(own_cluster.uri, streams=["another"])
    for named in ({"streams": ["s"]}, {"ledgers": [stream_id]}):
        assert scrub.plan(own_cluster.uri, **named).units == work.units


class Sink(AddRequester):
    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()

    def add_answered(self, tag, answer):
        self.answer.set_result(answer)


def test_the_command_shows_a_plan_and_ends_with_a_line(spark, own_cluster, tmp_path, capsys):
    own_cluster.run(fill, 1)
    arguments = ["scrub", "--cluster", own_cluster.uri, "--out", str(tmp_path / "t")]
    steps = [[*arguments, "--dry-run"], [*arguments, "--audit"], [*arguments, "--ledger", "77"]]
    assert run_lines(spark, [json.dumps(step) + "\n" for step in steps], 0.0) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["units"] for row in lines[0]["plan"]] == [1, 1, 1]
    assert (lines[1]["dry_run"], lines[1]["units"]) == (True, 3)
    assert (lines[3]["mode"], lines[3]["ok"], lines[3]["found"]) == ("audit", True, {})
    assert "77" in lines[4]["error"]


def test_a_damaged_record_is_reported_and_hides_no_other_ledger(spark, own_cluster, tmp_path, capsys):
    damaged, good = own_cluster.run(fill, 2)

    async def damage_record(client):
        key = OF_LEDGERS.key(damaged)
        before = await client.store.get(key)
        await client.store.multi([Put(key, before.value[:-9], before.version)])

    own_cluster.run(damage_record)
    work = scrub.plan(own_cluster.uri)
    assert {record.ledger_id for unit in work.units for record, _ in unit.pieces} == {good}
    arguments = ["scrub", "--cluster", own_cluster.uri, "--out", str(tmp_path / "t")]
    # Where nothing is left to look at, no worker of Spark is needed to say so.
    assert run_lines(spark, [json.dumps([*arguments, "--ledger", str(damaged)]) + "\n"], 0.0) == 1
    *_, line = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (line["ok"], line["found"], line["unread"]) == (False, {}, [*work.unread])
    [unread] = work.unread
    assert unread["ledger"] == damaged
    assert str(damaged) in unread["detail"]
