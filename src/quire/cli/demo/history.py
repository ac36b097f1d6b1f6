"""The demo's steps with the history input: a name space edit log, its snapshot, and git's own word for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quire.cli.console.failures import VerificationError
from quire.cli.demo import bulk
from quire.cli.demo.git_history import (
    NameSpace,
    NotUsableError,
    TreeEdit,
    middle_commit,
    read_edits,
    replay,
    repository_of,
    tree_at,
    usable_edits,
)
from quire.cli.demo.stdlib_repository import make_repository

if TYPE_CHECKING:
    from quire.blocking import Client
    from quire.cli.demo.narrator import Narrator
    from quire.cli.demo.processes import SparkProcess

LOG: Final = "history"
_SNAPSHOT_ENTRY_BYTES: Final = 64 * 1024
_DIGITS_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class DemoHistory:
    """The input and what has become of it.

    Attributes:
        repository: whose content is compared.
        edits: the whole history.
        middle: an earlier commit.
        middle_offset: how many edits had been made at it.
        snapshot_ledger: the ledger that holds the name space at that commit.
    """

    repository: Path
    edits: list[TreeEdit]
    middle: str
    middle_offset: int
    snapshot_ledger: int = -1


def find_history(narrator: Narrator, scratch: Path) -> DemoHistory:
    """The history of the repository this program is checked out in, or of one made from the standard library."""
    try:
        repository = repository_of(Path(__file__).parent)
        edits = usable_edits(repository)
    except NotUsableError as error:
        narrator.say(str(error))
        narrator.say("So the demo makes a repository from the standard library's files.")
        root = bulk.library_root()
        repository = make_repository(scratch, root, bulk.source_files(root))
        edits = read_edits(repository)
    return DemoHistory(repository, edits, *middle_commit(edits))


def append_history(client: Client, history: DemoHistory) -> DemoHistory:
    """Append every edit to the log, and a snapshot of the name space at the middle commit to a ledger."""
    log = client.log(LOG)
    log.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    with log.open_writer() as writer:
        for edit in history.edits:
            writer.append_nowait(edit.encode(), key=edit.path)
        writer.drain()
    data = replay(history.edits[: history.middle_offset]).snapshot()
    parts = [data[at : at + _SNAPSHOT_ENTRY_BYTES] for at in range(0, len(data), _SNAPSHOT_ENTRY_BYTES)]
    with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"snapshot") as ledger:
        ledger.append_many(parts)
        ledger_id = ledger.ledger_id
    return DemoHistory(history.repository, history.edits, history.middle, history.middle_offset, ledger_id)


def check_history(client: Client, history: DemoHistory) -> dict[str, int]:
    """Read the log back, replay it, and compare with git: at the earlier commit, at head, from snapshot plus tail.

    Returns:
        What was counted.

    Raises:
        VerificationError: something differs.
    """
    middle = tree_at(history.repository, history.middle)
    head = tree_at(history.repository, history.edits[-1].commit)
    space = NameSpace()
    count = 0
    for record in client.log(LOG).read(start=0):
        edit = TreeEdit.decode(record.key or b"", record.value or b"")
        if record.offset != count or edit != history.edits[count]:
            raise VerificationError(f"Offset {count} of log {LOG} holds {edit}, not {history.edits[count]}.")
        space.apply(edit)
        count += 1
        if count == history.middle_offset:
            same(space.paths, middle, f"replay up to commit {history.middle[:_DIGITS_SHOWN]}")
    if count != len(history.edits):
        raise VerificationError(f"The log {LOG} holds {count} edits of {len(history.edits)}.")
    same(space.paths, head, "replay up to head")
    reader = client.open_ledger(history.snapshot_ledger, password=b"snapshot")
    data = b"".join(bytes(entry.payload) for entry in reader.read(0, reader.last_add_confirmed))
    again = NameSpace.from_snapshot(data)
    same(again.paths, middle, "the snapshot")
    tail = 0
    for record in client.log(LOG).read(start=history.middle_offset):
        again.apply(TreeEdit.decode(record.key or b"", record.value or b""))
        tail += 1
    same(again.paths, head, "snapshot plus tail")
    return {
        "edits replayed": count,
        "paths equal git at the earlier commit": len(middle),
        "paths equal git at head": len(head),
        "edits after the snapshot": tail,
    }


def say_checked(narrator: Narrator, counts: dict[str, int]) -> None:
    """Say what `check_history` compared."""
    narrator.say(
        f"up to the snapshot's commit the changes give git's tree there, {counts['paths equal git at the earlier commit']:,} "
        f"paths; all together they give the last commit's, {counts['paths equal git at head']:,} paths"
    )
    narrator.say(
        f"the snapshot and the {counts['edits after the snapshot']:,} changes after it give that one too"
    )


def check_history_in_spark(
    spark: SparkProcess, cluster: str, history: DemoHistory, tables: Path, counts: dict[str, object]
) -> tuple[float, float]:
    """Let Spark replay the log, to the earlier commit and from there to head, and compare with git.

    Args:
        spark: runs it.
        cluster: its URI.
        history: what was written.
        tables: where Spark's states will lie.
        counts: gets what was counted.

    Returns:
        How many seconds each of the two took.

    Raises:
        VerificationError: something differs.
    """
    where = ["--cluster", cluster, "--log", LOG, "--deleted-prefix", "delete ", "--overwrite"]
    early, late = tables / "history-earlier", tables / "history-head"
    first = spark.run(
        "replay", *where, "--out", str(early), "--at", str(history.middle_offset), "--state", f"{early}.json"
    )
    facts = spark.run(
        "replay", *where, "--out", str(late), "--snapshot", str(early), "--state", f"{late}.json"
    )
    same(_state(Path(f"{early}.json")), tree_at(history.repository, history.middle), "Spark's state")
    head = tree_at(history.repository, history.edits[-1].commit)
    same(_state(Path(f"{late}.json")), head, "Spark's state from its snapshot plus tail")
    counts |= {"paths in Spark's state": len(head), "edits it read after its snapshot": facts["records_read"]}
    return first["seconds"], facts["seconds"]


def _state(path: Path) -> dict[bytes, tuple[str, str]]:
    found: dict[str, str] = json.loads(path.read_text("utf-8"))
    edits = (
        TreeEdit.decode(key.encode("utf-8", "surrogateescape"), value.encode("ascii"))
        for key, value in found.items()
    )
    return {edit.path: (edit.mode, edit.blob) for edit in edits}


def same(found: dict[Any, Any], truth: dict[Any, Any], what: str) -> None:
    """Compare two states.

    Raises:
        VerificationError: naming the first path that differs.
    """
    if found == truth:
        return
    path = min(path for path in found.keys() | truth.keys() if found.get(path) != truth.get(path))
    text = f"{what}: {path!r} is {found.get(path)} and should be {truth.get(path)}."
    raise VerificationError(text)
