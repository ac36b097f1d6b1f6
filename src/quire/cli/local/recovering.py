"""Auto-recovery in this process, from start to clean stop.

`quire up` starts a process of this module; `quire autorecovery` runs the same in the foreground.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from functools import partial
from typing import TYPE_CHECKING

from quire.cli.console.failures import report
from quire.cli.local.serve import run_loop, set_up_logging, stop_at_end_of_input

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


async def recover(
    cluster: str,
    *,
    until_eof: bool,
    on_ready: Callable[[str], None],
    rate_bytes: int | None = None,
    lost_delay_s: int | None = None,
) -> None:
    """Audit and repair a cluster until SIGTERM, SIGINT or (with `until_eof`) the end of standard input.

    Args:
        cluster: the cluster's URI.
        until_eof: the end of standard input (the parent's death) is a wish to stop.
        on_ready: is called with this process's name when it begins.
        rate_bytes: how many bytes a second are copied at most; None: as many as bookies take.
        lost_delay_s: is set for the whole cluster first: how long a bookie may be away.

    Raises:
        QuireError: the cluster cannot be reached.
    """
    import quire
    from quire.autorecovery.daemon import AutoRecovery
    from quire.log.collecting import LogCollector

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_eof:
        stop_at_end_of_input(loop, stop)
    async with quire.connect(cluster) as client:
        daemon = AutoRecovery(client, bytes_per_s=rate_bytes, duties=(LogCollector(client).collect,))
        if lost_delay_s is not None:
            await daemon.marks.set_lost_delay_s(lost_delay_s)
        running = asyncio.create_task(daemon.run(), name="auto-recovery")
        stopping = asyncio.create_task(stop.wait())
        try:
            on_ready(daemon.name)
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            for task in (running, stopping):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def main(arguments: Sequence[str] | None = None) -> int:
    """The process that `quire up` starts next to the bookies."""
    parser = argparse.ArgumentParser(prog="quire.cli.local.recovering")
    parser.add_argument("--cluster", required=True)
    options = parser.parse_args(arguments)
    ready = partial(logging.getLogger(__name__).info, "auto-recovery runs as %s")
    try:
        set_up_logging()
        run_loop(lambda: recover(options.cluster, until_eof=True, on_ready=ready))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the top of the process: all is reported
        return report(error, as_json=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
