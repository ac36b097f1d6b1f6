"""The demo's steps with the bulk input: servers are killed while it is written, and nothing may be lost."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from quire.cli.console.failures import VerificationError
from quire.cli.console.options import run
from quire.cli.console.output import counted, human_bytes
from quire.cli.demo.bulk import differences, digests_of, lines_of
from quire.cli.demo.processes import WriterProcess
from quire.cli.ledger.verify import findings
from quire.core.errors import RefusedError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from quire.autorecovery.repair import RepairTotals
    from quire.blocking import Client
    from quire.cli.demo.narrator import Narrator
    from quire.cli.demo.processes import SparkProcess
    from quire.cli.local.local_cluster import LocalCluster
    from quire.client.repairing.copies import MissingRange
    from quire.core.ledger.metadata import Fragment

LOG: Final = "bulk"
SMALL_INPUT_SECONDS: Final = 4
"""An input that would be written in less time is slowed down to this, so that there is something to kill."""
RATE_MAX: Final = 40_000


@dataclass(frozen=True, slots=True)
class Bulk:
    """The input of the demo.

    Attributes:
        root: the common root of the files.
        files: what is written, in order.
        records: how many lines they have.
        size: how many bytes.
        empty: how many of the files have no line, so that nothing of them is in the log.
    """

    root: Path
    files: list[Path]
    records: int
    size: int
    empty: int = 0

    @property
    def rate(self) -> int:
        """Records in a second the writer is held to; 0 for inputs that last by themselves."""
        return (
            0
            if self.records > RATE_MAX * SMALL_INPUT_SECONDS
            else max(10, self.records // SMALL_INPUT_SECONDS)
        )

    @property
    def hold_at(self) -> int:
        """The first writer goes no further than this, so that it is killed before its end; one record is written."""
        return self.share(9)

    def share(self, tenths: int) -> int:
        """How many records are that many tenths of all; one at least."""
        return max(1, self.records * tenths // 10)


def count_input(root: Path, files: list[Path]) -> Bulk:
    """Look at the input once."""
    records = size = 0
    for line in lines_of(root, files):
        records += 1
        size += len(line.value)
    return Bulk(root, files, records, size, sum(not path.stat().st_size for path in files))


def say_input(narrator: Narrator, bulk: Bulk) -> None:
    """Name the input, and how many files the table cannot have: those without a line."""
    empty = f", {bulk.empty:,} of them empty" if bulk.empty else ""
    narrator.say(
        f"{counted(len(bulk.files), 'file')} below {bulk.root}{empty}: {counted(bulk.records, 'line')}, {human_bytes(bulk.size)}"
    )


def kill_a_bookie(
    narrator: Narrator, client: Client, local: LocalCluster, writer: WriterProcess, bulk: Bulk
) -> int:
    """Kill a bookie of the ledger being written with SIGKILL, and wait until the writer is well beyond.

    Returns:
        The bookie's index in the cluster.
    """
    with narrator.progress("writing", bulk.records) as progress:
        writer.wait_until(lambda it: it.acknowledged >= bulk.share(3), progress.advance)
    ledger_id = client.log(LOG).describe().items[-1].ledger_id
    ensemble = _last_fragment(client, ledger_id).ensemble
    index = next(at for at, bookie in enumerate(local.bookies) if bookie.id in ensemble)
    before = writer.acknowledged
    dead = local.kill(index)
    narrator.say(f"{dead.id} killed with SIGKILL when {before:,} lines were acknowledged; the writer goes on")
    with narrator.progress("writing with three bookies", bulk.records) as progress:
        progress.advance(before)
        writer.wait_until(lambda it: it.acknowledged >= bulk.share(5), progress.advance)
    fragment = _last_fragment(client, ledger_id)
    for other in (bookie for bookie in fragment.ensemble if bookie not in ensemble):
        narrator.say(
            f"{other} took its place, from entry {fragment.first_entry:,} of ledger {ledger_id} on (an entry holds many lines)"
        )
    narrator.say(f"{writer.acknowledged:,} lines are acknowledged by now")
    return index


def _last_fragment(client: Client, ledger_id: int) -> Fragment:
    return client.open_ledger(ledger_id, password=b"", recover=False).metadata.last_fragment


def kill_the_writer(narrator: Narrator, cluster: str, writer: WriterProcess, bulk: Bulk) -> WriterProcess:
    """Kill the writer with SIGKILL and start its successor; returns when that one has recovered the log.

    Raises:
        VerificationError: the successor found less than was acknowledged.
    """
    writer.wait_until(lambda it: it.acknowledged >= bulk.share(6), lambda _count: None)
    acknowledged = writer.kill()
    narrator.say(f"writer killed with SIGKILL when {acknowledged:,} lines were acknowledged")
    successor = WriterProcess(cluster, LOG, bulk.root, bulk.files, bulk.rate)
    try:
        successor.wait_until(lambda it: it.opened is not None, lambda _count: None)
        found = successor.opened or 0
        if found < acknowledged:
            raise VerificationError(
                f"The successor found {found} records, but {acknowledged} had been acknowledged."
            )
    except BaseException:
        successor.close()
        raise
    more = f"{found - acknowledged:,}" if found > acknowledged else "no"
    narrator.say(
        f"its successor fenced and recovered the log in {successor.open_seconds:.2f} s and found {found:,} lines: "
        f"every acknowledged one, and {more} more that were on their way"
    )
    return successor


def finish(narrator: Narrator, writer: WriterProcess, bulk: Bulk) -> None:
    """Let the successor write the rest."""
    found = writer.acknowledged
    with narrator.progress("writing the rest", bulk.records) as progress:
        progress.advance(found)
        writer.wait_until(lambda it: it.done, progress.advance)
    writer.finish()
    narrator.say(f"the successor wrote the other {bulk.records - found:,}: the log holds the whole input")


def verify_records(narrator: Narrator, client: Client, bulk: Bulk) -> int:
    """Read the log from its first record to its last and compare each with the input.

    Raises:
        VerificationError: naming the first difference.
    """
    count = 0
    lines = lines_of(bulk.root, bulk.files)
    with narrator.progress("reading back", bulk.records) as progress:
        for record in client.log(LOG).read(start=0):
            line = next(lines, None)
            if line is None:
                raise VerificationError(f"The log {LOG} holds more records than the input's {bulk.records}.")
            if record.offset != count or record.value != line.value or record.key != line.key:
                raise VerificationError(
                    f"Offset {count} of log {LOG} is not line {count} of the input: {record}."
                )
            count += 1
            if count % 4096 == 0:
                progress.advance(4096)
    if count != bulk.records:
        raise VerificationError(f"The log {LOG} holds {count} records of {bulk.records}.")
    return count


@dataclass(slots=True)
class CopiesFound:
    """What reading every copy of some ledgers showed.

    Attributes:
        entries: how many there are.
        good: copies that are there and right.
        wanted: how many the write sets ask for.
        holes: the copies that are missing, with the ledger of each.
    """

    entries: int = 0
    good: int = 0
    wanted: int = 0
    holes: list[tuple[int, MissingRange]] = field(default_factory=list)


def verify_copies(client: Client, ledgers: list[int]) -> CopiesFound:
    """Compare all copies of all entries of the ledgers on all their bookies.

    Raises:
        VerificationError: an entry is on fewer bookies than its ack quorum, or copies differ.
    """
    copies = CopiesFound()
    for ledger_id in ledgers:
        report = client.verify_ledger(ledger_id)
        if not report.good:
            raise VerificationError(" ".join(findings(report)[:5]), ledger_id=ledger_id)
        copies.entries += report.entries
        copies.good += report.copies
        copies.wanted += report.copies_wanted
        copies.holes += [(ledger_id, hole) for hole in report.holes]
    return copies


def say_copies(narrator: Narrator, copies: CopiesFound, ledgers: int) -> None:
    """Say what was found, and which copies are missing why."""
    found = f"{copies.good:,} of the {copies.wanted:,}" if copies.holes else f"all {copies.wanted:,}"
    narrator.say(
        f"every copy read and compared: {counted(copies.entries, 'entry')} in {counted(ledgers, 'ledger')}, and {found} "
        "copies of them are there and right"
    )
    for ledger_id, hole in copies.holes:
        which = (
            f"entries {hole.first:,}..{hole.last:,}" if hole.last > hole.first else f"entry {hole.first:,}"
        )
        narrator.say(
            f"missing: {which} of ledger {ledger_id} on {hole.bookie}, which was killed before it had that part; the two other "
            "bookies acknowledged"
        )


def repair_copies(narrator: Narrator, client: Client, cluster: str, ledgers: list[int]) -> int:
    """Make the missing copies, as `quire cluster repair` does, and compare all copies once more.

    Returns:
        How many entries were copied.

    Raises:
        VerificationError: a copy is missing still.
    """
    with narrator.busy("repairing"):
        totals = run(_repair(cluster))
        after = verify_copies(client, ledgers)
    if after.holes:
        raise VerificationError(f"{after.wanted - after.good:,} copies are missing after the repair.")
    narrator.say(
        f"repaired, as `quire cluster repair` does: {counted(totals.entries, 'entry')} copied from the other bookies in "
        f"{totals.seconds:.2f} s; every copy read once more, and none is missing now"
    )
    return totals.entries


async def _repair(cluster: str) -> RepairTotals:
    import quire
    from quire.autorecovery.repair import ClusterRepair

    async with quire.connect(cluster) as client:
        repair = ClusterRepair(client)
        return await repair.run((await repair.look()).to_repair)


def check_table(spark: SparkProcess, cluster: str, bulk: Bulk, tables: Path) -> tuple[dict[str, Any], int]:
    """Let Spark make a Parquet table of the log, and put every file together again from it.

    Returns:
        What the job said, and how many files have the digest of the original.

    Raises:
        VerificationError: a file differs, or records are missing or doubled.
    """
    table = tables / "bulk.parquet"
    digests = tables / "bulk-digests.json"
    where = ["--cluster", cluster, "--log", LOG, "--out", str(table), "--overwrite"]
    facts = spark.run("to_parquet", *where, "--key-digests", str(digests))
    if facts["records"] != bulk.records:
        raise VerificationError(f"The table has {facts['records']} rows for {bulk.records} records.")
    found = {key: value["sha256"] for key, value in json.loads(digests.read_text("utf-8")).items()}
    truth = digests_of(bulk.root, bulk.files)
    if wrong := differences(truth, found):
        raise VerificationError(
            "Files put together from the table are not the originals: " + "; ".join(wrong)
        )
    return facts, len(truth)


def await_bookie(client: Client, bookie_id: str, timeout_s: float = 30.0) -> None:
    """Wait until a restarted bookie is registered again."""
    deadline = time.monotonic() + timeout_s
    while bookie_id not in {info.bookie_id for info in client.available_bookies()}:
        if time.monotonic() > deadline:
            raise RefusedError(f"{bookie_id} did not register in {timeout_s:.0f} s.", bookie=bookie_id)
        time.sleep(0.05)
