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
from jobs import adding, crowding, failing, lifecycle, reading, recovering, scaling, tailing
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
    "tasks": scaling.tasks,
    "crowded": crowding.crowded,
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


async def serve(cluster: str, pids: list[int], protocol: str, *, tunes_collector: bool) -> None:
    """Answer jobs until the input ends."""
    # Java has no short-circuit reads: what is compared is the way over the connection.
    config = ClientConfig(protocol=protocol, short_circuit_reads=False)
    async with quire.connect(cluster, config=config) as client:
        world = World(client, cluster, pids, tunes_collector=tunes_collector)
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

    By default the cyclic garbage collector looks for work less often than it does by itself, as in any program that
    handles many small objects and makes few cycles; the Java client has its heap and its collector chosen, too.
    """
    options = argparse.ArgumentParser()
    options.add_argument("--cluster", required=True)
    options.add_argument("--pids", default="")
    options.add_argument("--protocol", default="auto", help="as ClientConfig.protocol")
    options.add_argument(
        "--collector",
        choices=("tuned", "python", "short"),
        default="tuned",
        help="the garbage collector: looks more seldom, as it comes, or as it comes with `keep_collections_short`",
    )
    given = options.parse_args()
    if given.collector == "tuned":
        gc.set_threshold(YOUNG_OBJECTS)
    elif given.collector == "short":
        quire.keep_collections_short()
    tunes = given.collector == "tuned"
    pids = [int(pid) for pid in given.pids.split(",") if pid]
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(given.cluster, pids, given.protocol, tunes_collector=tunes))
    except ImportError:
        asyncio.run(serve(given.cluster, pids, given.protocol, tunes_collector=tunes))


if __name__ == "__main__":
    main()
