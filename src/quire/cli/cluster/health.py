"""`quire cluster health`: in one line, whether logs can be written and whether all is well; for scripts and probes."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

from quire.cli.cluster.bookie_rows import bookie_rows, listed
from quire.cli.console.failures import EXIT_ATTENTION, EXIT_FAILED
from quire.cli.console.opening import connected, with_cluster
from quire.cli.console.options import TIMEOUT_MAX, option, run
from quire.cli.console.output import Output, counted
from quire.core.cluster_state import BookieStanding, ClusterBookie, ClusterHealth, ClusterJudgement, judge
from quire.core.errors import AlreadyExistsError, InvalidQuorumError, NoClusterError, QuireError
from quire.core.ids import BookieId
from quire.core.ledger.placement import Shape
from quire.core.ledger.quorum import check_quorums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quire.log.client import QuireClient
    from quire.metadata.store import MetadataStore

MARKS_MAX: Final = 1000
"""So many ledgers that are marked for repair are counted."""
HEADS_MAX: Final = 1000
"""The shapes of so many logs are looked at."""
OLD_MARK_S: Final = 60
"""A worker begins with a marked ledger sooner."""
QUORUMS: Final = "3/3/2"


@with_cluster
def health(
    uri: str,
    out: Output,
    timeout: Annotated[
        float,
        option("--timeout SECONDS", "How long the store and the bookies may take.", min=0.1, max=TIMEOUT_MAX),
    ] = 5.0,
    quorums: Annotated[
        str, option("--quorums E/QW/QA", "The quorums of the ledgers that are to be created.")
    ] = QUORUMS,
) -> int:
    """Say in one line whether logs can be written and all is well; for scripts and probes.

    Makes one small change in the metadata store, of a key of its own, to see whether it takes changes. Exit code 0: healthy.
    5: logs can be written, and something needs a person or time: a bookie that is down, read-only or silent or that reports a
    condition, or a ledger that has been marked for repair for more than a minute. 1: the metadata store does not respond in
    time or refuses the change, or too few bookies take entries for a ledger with these quorums.
    """
    facts, text = run(examine(uri, timeout, shape_in(quorums)))
    out.result(facts, text)
    return {ClusterHealth.HEALTHY.value: 0, ClusterHealth.ATTENTION.value: EXIT_ATTENTION}.get(
        facts["health"], EXIT_FAILED
    )


def shape_in(quorums: str) -> Shape:
    """The shape of ledgers with quorums as users write them, such as 3/3/2.

    Raises:
        InvalidQuorumError: three numbers E/Qw/Qa are meant, with E >= Qw >= Qa >= 1.
    """
    words = quorums.split("/")
    if len(words) != 3 or not all(word.isascii() and word.isdigit() for word in words):
        raise InvalidQuorumError(f"quorums are three numbers E/Qw/Qa, such as {QUORUMS}, not {quorums!r}")
    size, write_quorum, ack_quorum = map(int, words)
    check_quorums(size, write_quorum, ack_quorum)
    return Shape(size, write_quorum, ack_quorum, ack_quorum)


async def examine(uri: str, timeout_s: float, shape: Shape) -> tuple[dict[str, Any], str]:
    """How healthy a cluster is, for ledgers of a shape.

    Returns:
        What programs read, and the line for people.
    """
    client_of, began = connected(uri), time.monotonic()  # what it imports is not the store's time
    async with AsyncExitStack() as opened:
        try:
            async with asyncio.timeout(timeout_s):
                client = await opened.enter_async_context(client_of)
                found = await listed(client)
                refusal = await refusal_of(client.store)
                marked, shapes = await old_marks(client), await shapes_of(client.store, shape)
        except TimeoutError as error:
            raise NoClusterError(
                f"The metadata store of {uri} did not respond in {timeout_s:g} s: check that it runs and can be reached."
            ) from error
        rows = await bookie_rows(client, found, int((began + timeout_s - time.monotonic()) * 1000))
    judged = judge(shapes, states_of(rows), takes_changes=not refusal, has_old_marks=bool(marked))
    first = judged.shapes[0]
    facts = {
        "health": judged.health.value,
        "cluster": uri,
        "quorums": quorums_of(shape),
        "writable": len(judged.writable),
        "bookies": len(rows),
        "absent_slots": first.absent_slots,
        "refusal": first.refusal or None,
        "refused_of_logs": {quorums_of(one.shape): one.refusal for one in judged.shapes[1:] if one.refusal},
        "store": refusal or None,
        "attention": list(judged.needy),
        "marked": marked,
        "seconds": round(time.monotonic() - began, 3),
    }
    return facts, line_of(judged, len(rows), refusal, marked)


async def judged_of(client: QuireClient, rows: Sequence[dict[str, Any]]) -> tuple[ClusterJudgement, int]:
    """The judgement of a cluster whose bookies are these rows, for the default quorums and the logs', and its `old_marks`."""
    marked, shapes = await asyncio.gather(old_marks(client), shapes_of(client.store, shape_in(QUORUMS)))
    return judge(shapes, states_of(rows), has_old_marks=bool(marked)), marked


def quorums_of(shape: Shape) -> str:
    """The quorums of a shape, as users write them."""
    return f"{shape.ensemble_size}/{shape.write_quorum}/{shape.ack_quorum}"


async def shapes_of(store: MetadataStore, asked: Shape) -> list[Shape]:
    """The shape that is asked for, and those of the first `HEADS_MAX` logs; a damaged log has none."""
    from quire.core.errors import CorruptMetadataError
    from quire.log.heads import HEADS
    from quire.wire.log_records import decode_head

    found: dict[Shape, None] = {asked: None}
    for key, stored in await store.list(HEADS, limit=HEADS_MAX):
        with suppress(CorruptMetadataError, ValueError):
            log = decode_head(stored.value, bytes.fromhex(key.removeprefix(HEADS))).settings
            least = log.min_present or log.ack_quorum
            found[Shape(log.ensemble_size, log.write_quorum, log.ack_quorum, least)] = None
    return list(found)


def states_of(rows: Sequence[dict[str, Any]]) -> list[ClusterBookie]:
    """The bookies of a cluster, from the rows that `bookie_rows` gives."""
    return [
        ClusterBookie(
            BookieId(row["id"]), BookieStanding(row["standing"]), bool(row["conditions"]), row["zone"]
        )
        for row in rows
    ]


def line_of(judged: ClusterJudgement, bookies: int, refusal: str = "", marked: int = 0) -> str:
    """What people read."""
    first = judged.shapes[0]
    if refusal:
        return f"unhealthy: the metadata store takes no change, so nothing is created or replaced: {refusal}"
    parts = [f"{len(judged.writable)} of {counted(bookies, 'bookie')} can be written to"]
    if first.refusal:
        parts.append(first.refusal)
    elif first.absent_slots:
        parts.append(
            f"a new ledger begins with {counted(first.absent_slots, 'absent slot')} ({', '.join(first.absent)})"
        )
    parts += [f"there are logs for which {one.refusal}" for one in judged.shapes[1:] if one.refusal]
    if judged.needy:
        need = "needs" if len(judged.needy) == 1 else "need"
        parts.append(f"{', '.join(judged.needy)} {need} attention (`quire cluster bookies`)")
    if marked:
        has, some = "has" if marked == 1 else "have", "at least " if marked == MARKS_MAX else ""
        parts.append(
            f"{some}{counted(marked, 'ledger')} {has} been marked for repair for more than a minute "
            "(`quire cluster repairs`)"
        )
    return f"{judged.health.value}: {'; '.join(parts)}"


async def old_marks(client: QuireClient) -> int:
    """How many ledgers have been marked for repair for longer than a minute, or by a mark that cannot be read, up to `MARKS_MAX`."""
    marks = client.records.repairs("quire cluster")
    before_ms = (time.time() - OLD_MARK_S) * 1000
    old = set[int]()
    for ledger_id, missing in await marks.missing_page(limit=MARKS_MAX):
        if missing.mark is None or (missing.mark.marked_ms or 0) < before_ms:
            old.add(ledger_id)
    for ledger_id, own in await marks.marks_page(limit=MARKS_MAX):
        if own.mark is None or any(mark.seen_ms < before_ms for mark in own.mark.marks):
            old.add(ledger_id)
    return min(len(old), MARKS_MAX)


async def refusal_of(store: MetadataStore) -> str:
    """Make one small change, of a key that nothing depends on; what the store says against it, empty if it takes it."""
    from quire.metadata.keys import HEALTH
    from quire.metadata.store import VersionConflictError

    try:
        found = await store.get(HEALTH)
        now = str(time.time_ns() // 1_000_000).encode()
        with suppress(AlreadyExistsError, VersionConflictError):  # another probe's change was taken just now
            if found is None:
                await store.create(HEALTH, now)
            else:
                await store.put(HEALTH, now, found.version)
    except QuireError as error:
        return error.message
    return ""
