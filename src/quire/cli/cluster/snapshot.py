"""What `quire top` shows at one moment: bookies with their rates, and the busiest logs with their writers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from quire.cli.cluster.bookie_rows import bookie_rows
from quire.cli.cluster.health import judged_of, line_of
from quire.core.errors import QuireError

if TYPE_CHECKING:
    from quire.log.client import QuireClient

LOGS_LOOKED_AT_MAX: Final = 500
LOGS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster at one moment.

    Attributes:
        at_ms: since the epoch.
        bookies: rows of `bookie_rows` with `entries_per_s` and `bytes_per_s`, None at the first look.
        logs: `log`, `end_offset`, `records_per_s`, `writer` (where it runs, None without one).
        logs_count: of all logs.
        logs_looked_at: of those that were asked for their end: the first ones by name.
        health: the line that `quire cluster health` prints of this, without a change in the store.
    """

    cluster: str
    at_ms: int
    bookies: list[dict[str, Any]]
    logs: list[dict[str, Any]]
    logs_count: int
    logs_looked_at: int
    health: str = ""

    def facts(self) -> dict[str, Any]:
        """One look as programs read it."""
        rows = [{key: value for key, value in row.items() if key != "info"} for row in self.bookies]
        return asdict(self) | {"bookies": rows}


class Snapshots:
    """Looks at a cluster again and again; rates are those between two looks.

    Args:
        client: the opened cluster.
        uri: its name.
        logs_max: most logs that are kept, the busiest first.
    """

    def __init__(self, client: QuireClient, uri: str, logs_max: int) -> None:
        self._client, self._uri, self._logs_max = client, uri, logs_max
        self._before: dict[tuple[str, str], tuple[float, int]] = {}

    async def take(self) -> Snapshot:
        """Look once."""
        rows, (count, looked_at, logs) = await asyncio.gather(bookie_rows(self._client), self._logs())
        judged, marked = await judged_of(self._client, rows)
        for row in rows:
            says = row.get("info") or {}
            row["entries_per_s"] = self._rate(row["id"], "entries", says.get("entries_added"))
            row["bytes_per_s"] = self._rate(row["id"], "bytes", says.get("bytes_added"))
        logs.sort(key=lambda log: (-(log["records_per_s"] or 0.0), log["log"]))
        return Snapshot(
            self._uri,
            time.time_ns() // 1_000_000,
            rows,
            logs[: self._logs_max],
            count,
            looked_at,
            line_of(judged, len(rows), marked=marked),
        )

    async def _logs(self) -> tuple[int, int, list[dict[str, Any]]]:
        names = await self._client.logs()
        turn = asyncio.Semaphore(LOGS_AT_ONCE)

        async def look(name: str) -> dict[str, Any] | None:
            async with turn:
                try:
                    about = await self._client.log(name).describe()
                except QuireError:
                    return None  # it was deleted meanwhile, or too few of its bookies respond
            return {
                "log": name,
                "end_offset": about.end_offset,
                "records_per_s": self._rate(name, "records", about.end_offset),
                "writer": about.leader_host or None,
            }

        looked = names[:LOGS_LOOKED_AT_MAX] if self._logs_max else []
        found = await asyncio.gather(*map(look, looked))
        return len(names), len(looked), [log for log in found if log is not None]

    def _rate(self, name: str, what: str, count: object) -> float | None:
        """How fast a counter has grown since the last look; None at the first, and where it began anew."""
        if not isinstance(count, int):
            return None
        now = time.monotonic()
        then, before = self._before.get((what, name), (now, 0))
        self._before[what, name] = (now, count)
        return round((count - before) / (now - then), 1) if now > then and count >= before else None
