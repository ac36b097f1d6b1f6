"""The demo from the first bookie to the finished table: the order of the steps, and what is cleaned up after them."""

from __future__ import annotations

import fcntl
import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from quire.cli.console.output import counted
from quire.cli.demo import bulk, history, needed, under_fire
from quire.cli.demo.processes import SparkProcess, WriterProcess
from quire.cli.local.local_cluster import LocalCluster
from quire.core.errors import DirectoryInUseError, MisuseError
from quire.env.private import FOLDER_MODE, check_owner, close_to_others, open_private
from quire.env.real import RealFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from quire.cli.demo.narrator import Narrator

BOOKIES = 4
_MARK = ".quire-demo"
_OURS = ("cluster", "tables", "spark.log")


def tell(narrator: Narrator, directory: Path, source: Path | None) -> dict[str, Any]:
    """Run the whole demo.

    Args:
        narrator: prints it.
        directory: where everything will lie; what a former demo left there is replaced.
        source: the user's own file or directory instead of the standard library.

    Returns:
        The summary.
    """
    from quire import blocking

    root, files = bulk.input_files(source) if source else _library()
    needed.check(directory)
    tables = directory / "tables"
    with ExitStack() as stack:
        stack.enter_context(prepared(directory))
        tables.mkdir()
        narrator.say(f"The demo takes a minute or two. All of it lies in {directory}.")
        with narrator.step("A cluster on this machine") as step:
            with narrator.busy("starting the bookies"):
                local = stack.enter_context(LocalCluster(directory / "cluster", BOOKIES))
            # A JVM takes seconds to start: it does so while the log is written.
            spark = SparkProcess(directory / "spark.log")
            stack.callback(spark.close)
            client = stack.enter_context(blocking.connect(local.uri))
            narrator.say(f"{BOOKIES} bookies, the servers that store the copies, each a process:")
            for bookie in local.bookies:
                narrator.say(f"  {bookie.id} on {bookie.address}, process {bookie.pid}")
            narrator.say("Everything below is kept on 3 of them, and acknowledged once 2 have it on disk.")
            step.counts |= {"bookies": BOOKIES}

        with narrator.step("The history of a repository becomes a log, with a snapshot next to it") as step:
            found = history.find_history(narrator, directory / "stdlib.git")
            narrator.say(f"{found.repository}, to commit {found.edits[-1].commit[:12]}")
            with narrator.busy("appending"):
                found = history.append_history(client, found)
            commits = len({edit.commit for edit in found.edits})
            narrator.say(
                f"log {history.LOG}: {len(found.edits):,} records, one for each change of a path in {commits:,} commits"
            )
            narrator.say(f"the snapshot is of the tree after {found.middle_offset:,} of these changes")
            step.counts |= {"edits appended": len(found.edits), "commits": commits}

        with narrator.step("The log is read back and replayed; git says whether it is right") as step:
            with narrator.busy("replaying"):
                checked = history.check_history(client, found)
            step.counts |= checked
            history.say_checked(narrator, checked)

        with narrator.step("Every line of many files becomes a record; a bookie dies meanwhile") as step:
            what = under_fire.count_input(root, files)
            under_fire.say_input(narrator, what)
            client.log(under_fire.LOG).create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            writer = WriterProcess(local.uri, under_fire.LOG, root, files, what.rate, hold_at=what.hold_at)
            stack.callback(writer.close)
            dead = under_fire.kill_a_bookie(narrator, client, local, writer, what)
            step.counts |= {"bookies killed": 1, "records acknowledged so far": writer.acknowledged}

        with narrator.step("The writer dies too; its successor recovers the log and writes the rest") as step:
            successor = under_fire.kill_the_writer(narrator, local.uri, writer, what)
            stack.callback(successor.close)
            step.counts |= {"writers killed": 1, "acknowledged to the dead": writer.acknowledged}
            step.counts |= {"found by the successor": successor.opened or 0}
            under_fire.finish(narrator, successor, what)
            step.counts |= {"records in the log": successor.acknowledged}

        with narrator.step(
            "The dead bookie comes back; every record and every copy is verified, and what is missing is copied"
        ) as step:
            with narrator.busy("starting the dead bookie again"):
                again = local.restart(dead).id
                under_fire.await_bookie(client, again)
            narrator.say(f"{again} is back, with the data that it had")
            step.counts |= {"records read back and right": under_fire.verify_records(narrator, client, what)}
            narrator.say("every line read back, and equal to the input's")
            items = [
                item for log in (history.LOG, under_fire.LOG) for item in client.log(log).describe().items
            ]
            ledgers = [int(item.ledger_id) for item in items]
            with narrator.busy("comparing every copy on every bookie"):
                copies = under_fire.verify_copies(client, ledgers)
            under_fire.say_copies(narrator, copies, len(ledgers))
            step.counts |= {
                "ledgers": len(ledgers),
                "entries": copies.entries,
                "good copies": copies.good,
                "wanted copies": copies.wanted,
            }
            if copies.holes:
                step.counts |= {
                    "entries repaired": under_fire.repair_copies(narrator, client, local.uri, ledgers)
                }
            step.counts |= {"copies missing": 0}

        with narrator.step(
            "Spark makes a table of the log, and every file is put together again from it"
        ) as step:
            with narrator.busy("Spark reads the log, writes the table and puts the files together"):
                facts, same_files = under_fire.check_table(spark, local.uri, what, tables)
            step.counts |= {"rows": facts["records"], "files": facts["keys"], "digests equal": same_files}
            narrator.say("the table has a row for each line, once; its first rows:")
            _draw(narrator, facts)
            narrator.say(
                f"{counted(same_files, 'file')}{', all but the empty ones,' if what.empty else ''} put together from the rows: "
                "each has the SHA-256 digest of its original"
            )
            narrator.say(
                f"Spark's session took {facts['session_seconds']:.1f} s (begun in step 1), the table {facts['write_seconds']:.1f} s, "
                f"looking for lost and doubled rows {facts['check_seconds']:.1f} s, the digests {facts['digest_seconds']:.1f} s"
            )

        with narrator.step("Spark replays the history, and git says whether it is right") as step:
            with narrator.busy("Spark replays the log, to the earlier commit and from there to head"):
                seconds = history.check_history_in_spark(spark, local.uri, found, tables, step.counts)
            narrator.say(
                f"up to the snapshot's commit, and from the state there on to the last commit, it comes to git's trees "
                f"({seconds[0]:.1f} s and {seconds[1]:.1f} s)"
            )
    return {
        "demo": "done",
        "seconds": round(narrator.seconds, 3),
        "lost": 0,
        "records": what.records,
        "edits": len(found.edits),
        "directory": str(directory),
        "cluster": local.uri,
        "cluster_directory": str(directory / "cluster"),
        "table": facts["table"],
        "logs": [history.LOG, under_fire.LOG],
    }


@contextmanager
def prepared(directory: Path) -> Iterator[None]:
    """Make the directory, or empty it when a former demo made it; no other demo may use it meanwhile.

    Raises:
        MisuseError: it holds something else.
        DirectoryInUseError: another demo is running in it.
        WrongDirectoryError: another user made it where everybody may make one.
    """
    check_owner(directory)
    mark = directory / _MARK
    if directory.exists() and any(directory.iterdir()) and not mark.exists():
        raise MisuseError(
            f"{directory} is not empty and no demo made it: choose another --dir.", path=str(directory)
        )
    RealFiles().make_directory(directory)
    close_to_others(directory, FOLDER_MODE)
    with open_private(mark, "a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = f"Another demo is running in {directory}: wait for it, or choose another --dir."
            raise DirectoryInUseError(text, path=str(directory)) from error
        for name in _OURS:
            path = directory / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        yield


def _library() -> tuple[Path, list[Path]]:
    root = bulk.library_root()
    return root, bulk.source_files(root)


def _draw(narrator: Narrator, facts: dict[str, Any]) -> None:
    """The first rows of the table."""
    from rich.table import Table

    table = Table()
    for column in ("offset", "timestamp", "key", "value"):
        table.add_column(column, no_wrap=True, justify="right" if column == "offset" else "left")
    for row in facts["sample"]:
        table.add_row(str(row["offset"]), row["timestamp"], row["key"] or "", repr(row["value"])[:60])
    narrator.out.draw(table)
