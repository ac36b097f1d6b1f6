"""Whole lives of ledgers, one at a time, and creations 64 at once: what `lifecycle.py` and `zookeeper.py` measure."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from harness import Comparison, say
from peers import LoadClient

WARM_UP_ADDS = 100_000
WARM_UP_CYCLES = 300
STEPS = ("create_ms", "add_ms", "close_ms", "open_ms")


def add_options(options: argparse.ArgumentParser) -> None:
    """How much there is in a round."""
    options.add_argument("--count", type=int, default=1000, help="cycles per round (default %(default)s)")
    options.add_argument(
        "--creates", type=int, default=2000, help="creations per round, 64 in flight (default %(default)s)"
    )


class Cycles:
    """Rounds of some clients, who are warm when this returns.

    Args:
        clients: by their names.
        count: create, add, close and open so often in a round, one at a time.
        creates: ledgers created in a round, 64 in flight.
    """

    def __init__(self, clients: Mapping[str, LoadClient], count: int, creates: int) -> None:
        self._clients = clients
        self._count = count
        self._creates = creates
        self._cycles: dict[str, list[dict[str, Any]]] = {name: [] for name in clients}
        self._at_once: dict[str, list[float]] = {name: [] for name in clients}
        for client in clients.values():  # let the JIT see adds, creations and whole cycles
            client.warm_up(WARM_UP_ADDS)
            client.run("create", WARM_UP_CYCLES)
            client.run("cycle", WARM_UP_CYCLES)
            say(f"  {client.name} is warm")

    def round(self) -> dict[str, float]:
        """One round of each client, in turn; cycles per second."""
        for name, client in self._clients.items():
            self._cycles[name].append(client.run("cycle", self._count))
            self._at_once[name].append(client.run("create", self._creates)["creates_per_s"])
        return {name: float(rounds[-1]["cycles_per_s"]) for name, rounds in self._cycles.items()}

    def note(self, comparison: Comparison) -> None:
        """Put down where the time went: medians of all rounds."""
        for name, rounds in self._cycles.items():
            comparison.extra[f"ms of each step, {name}"] = {
                step.removesuffix("_ms"): round(statistics.median(one[step] for one in rounds), 2)
                for step in STEPS
            }
        comparison.extra["creates_per_s_64_in_flight"] = {
            name: round(statistics.median(rates)) for name, rates in self._at_once.items()
        }
        comparison.extra["cpu_us_per_cycle"] = {
            name: round(statistics.median(one["client_cpu_us"] + one["bookies_cpu_us"] for one in rounds))
            for name, rounds in self._cycles.items()
        }
