"""Our load client: the same jobs, the same window and the same checks as `tools/java-bench`.

One job per line on standard input, one JSON object per line on standard output. A word with an equals sign is an option
of the job (`e=6 qw=3 qa=2`). Each job writes new ledgers, reads all of them back, compares, and deletes them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import quire
from jobs import adding, failing, lifecycle, reading, recovering, scaling, tailing
from jobs.world import Job, World
from quire.client.config import ClientConfig

YOUNG_OBJECTS = 50_000
JOBS: dict[str, Callable[[World, Job], Awaitable[dict[str, Any]]]] = {
    "append": adding.append,
    "latency": adding.latency,
    "fill-ledgers": reading.fill,
    "read-ledger": reading.read,
    "delete-ledgers": reading.delete,
    "open-many": scaling.open_many,
    "round-robin": scaling.round_robin,
    "close-many": scaling.close_many,
    "keep": scaling.keep,
    "length": scaling.length,
    "fragments": scaling.fragments,
    "tail": tailing.tail,
    "begin": failing.begin,
    "write": failing.write,
    "verify": failing.verify,
    "cycle": lifecycle.cycle,
    "create": lifecycle.create,
    "recover": recovering.recover,
    "fill-journal": recovering.fill_journal,
    "read-back": recovering.read_back,
}


async def serve(cluster: str, pids: list[int], protocol: str) -> None:
    """Answer jobs until the input ends."""
    # Java has no short-circuit reads: what is compared is the way over the connection.
    config = ClientConfig(protocol=protocol, short_circuit_reads=False)
    async with quire.connect(cluster, config=config) as client:
        world = World(client, cluster, pids)
        _say({"ready": True})
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                job = Job.parse(line)
                _say({"job": job.name, **await JOBS[job.name](world, job)})
            except Exception as error:  # noqa: BLE001 - whatever it is, the harness must hear of it
                _say({"error": f"{type(error).__name__}: {error}"})


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Parse the options and serve.

    The cyclic garbage collector looks for work less often than it does by itself, as in any program that handles many
    small objects and makes few cycles; the Java client has its heap and its collector chosen, too.
    """
    gc.set_threshold(YOUNG_OBJECTS)
    options = argparse.ArgumentParser()
    options.add_argument("--cluster", required=True)
    options.add_argument("--pids", default="")
    options.add_argument("--protocol", default="auto", help="as ClientConfig.protocol")
    given = options.parse_args()
    pids = [int(pid) for pid in given.pids.split(",") if pid]
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(given.cluster, pids, given.protocol))
    except ImportError:
        asyncio.run(serve(given.cluster, pids, given.protocol))


if __name__ == "__main__":
    main()
