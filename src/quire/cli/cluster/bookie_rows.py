"""What is known of every bookie of a cluster: its registration, its cookie, and what it reports when it is asked.

Many bookies are asked at once, so that those that do not respond cost one time-out and not one for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from quire.cli.cluster.alerts import conditions_of, silent, unregistered
from quire.cli.console.output import counted, human_bytes, human_duration
from quire.core.cluster_state import BookieStanding, standing
from quire.wire.addresses import address_of

if TYPE_CHECKING:
    from quire.core.ids import BookieId
    from quire.log.client import QuireClient
    from quire.metadata.bookies import BookieInfo

ASKED_AT_ONCE: Final = 64
TIMEOUT_MS: Final = 2000
LEAST_MS: Final = 100


class FoundBookies(NamedTuple):
    """The bookies of a cluster, as the metadata store lists them: those that are registered, and all that have a cookie."""

    registered: dict[BookieId, BookieInfo]
    cookies: Collection[BookieId]


async def listed(client: QuireClient) -> FoundBookies:
    """The bookies of a cluster; no bookie is asked."""
    return FoundBookies(
        *await asyncio.gather(client.bookies.registry.available(), client.bookies.registry.list_cookies())
    )


async def bookie_rows(
    client: QuireClient, found: FoundBookies | None = None, left_ms: int | None = None
) -> list[dict[str, Any]]:
    """A row for every bookie, sorted by id; those that only have a cookie come last.

    Args:
        client: the opened cluster.
        found: its bookies; None: they are listed first.
        left_ms: the time for all of them, of which none gets less than `LEAST_MS`; None: each has `TIMEOUT_MS`.
    """
    found = found or await listed(client)
    turns = max(1, -(-len(found.registered) // ASKED_AT_ONCE))
    timeout_ms = TIMEOUT_MS if left_ms is None else max(LEAST_MS, left_ms // turns)
    turn = asyncio.Semaphore(ASKED_AT_ONCE)

    async def row(bookie: BookieId, info: BookieInfo) -> dict[str, Any]:
        async with turn:
            return await _row(client, bookie, info, timeout_ms)

    rows = await asyncio.gather(*(row(bookie, info) for bookie, info in sorted(found.registered.items())))
    return [*rows, *(_down(str(bookie)) for bookie in sorted(set(found.cookies) - set(found.registered)))]


async def _row(client: QuireClient, bookie: BookieId, info: BookieInfo, timeout_ms: int) -> dict[str, Any]:
    from quire.core.answers import Answer
    from quire.wire.bookie_service_info import FEATURES_PROPERTY

    answer, says = await client.bookies.info(bookie, timeout_ms=timeout_ms)
    ok = answer is Answer.OK
    protocol = "bookkeeper" if info.native is None else f"native {info.native[1]}"
    return {
        "id": str(bookie),
        "address": address_of(info.host, info.port),
        "standing": standing(writable=info.writable, responds=ok).value,
        "answers": answer.name.lower(),
        "protocol": protocol,
        "features": info.properties.get(FEATURES_PROPERTY),
        "zone": info.zone,
        "holds": _held(says),
        **figures_of(says),
        "info": says if ok else None,
        "conditions": conditions_of(says, writable=info.writable) if ok else silent(answer.name.lower()),
    }


def _down(bookie: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("answers", "protocol", "features", "holds"))
    down = {
        "id": bookie,
        "zone": "",
        "address": None,
        "standing": BookieStanding.DOWN.value,
        "conditions": unregistered(),
    }
    return down | nothing | figures_of({})


def figures_of(says: dict[str, Any]) -> dict[str, Any]:
    """The figures of a bookie's response; a value of another type is left out.

    Returns:
        `version`, `uptime_s`, `stored_bytes` (all files of its segments, as `quire bookie space`), `disk_bytes`, `free_bytes`; None for what it does not tell.
    """
    storage, disk = object_in(says.get("storage")), object_in(says.get("disk"))
    version, uptime_ms = says.get("version"), count_in(says.get("uptime_ms"))
    return {
        "version": version[:40] if isinstance(version, str) and version.isprintable() else None,
        "uptime_s": None if uptime_ms is None else round(uptime_ms / 1000, 1),
        "stored_bytes": count_in(storage.get("file_bytes")),
        "disk_bytes": count_in(disk.get("bytes")),
        "free_bytes": count_in(disk.get("free_bytes")),
    }


def collector_of(says: dict[str, Any] | None) -> dict[str, Any]:
    """What a bookie's response reports of its collector; a value of another type is left out.

    Returns:
        `makes_passes`, `holding` (why it deletes nothing), `failure` (of its last pass), `unknown` (ledgers without a record).
    """
    report = object_in((says or {}).get("collector"))
    texts = {name: report.get(name) for name in ("holding", "failure")}
    return {
        "makes_passes": bool(report.get("every_seconds")),
        "unknown": count_in(report.get("unknown")) or 0,
        **{name: text if isinstance(text, str) else None for name, text in texts.items()},
    }


def shown(row: dict[str, Any]) -> dict[str, str | None]:
    """A row's figures as people read them."""
    free = row["free_bytes"]
    return {
        "stored": None if row["stored_bytes"] is None else human_bytes(row["stored_bytes"]),
        "free": None if free is None else f"{human_bytes(free)} of {human_bytes(row['disk_bytes'] or 0)}",
        "uptime": None if row["uptime_s"] is None else human_duration(row["uptime_s"]),
    }


def _held(says: dict[str, Any]) -> str | None:
    """What a bookie reports of its ledgers; Java's reports only its disk."""
    storage = object_in(says.get("storage"))
    ledgers, segments = count_in(storage.get("ledgers")), count_in(storage.get("segments"))
    if ledgers is None or segments is None:
        return None
    return f"{counted(ledgers, 'ledger')} in {counted(segments, 'segment')}"


def object_in(value: object) -> dict[str, Any]:
    """A value of a response as an object; an empty one if it is none."""
    return value if isinstance(value, dict) else {}


def count_in(value: object) -> int | None:
    """A value of a response as a number from 0; None if it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
