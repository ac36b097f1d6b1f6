"""The demo's writer, a process of its own so that it can be killed: appends an input's lines to a log.

    python -m quire.cli.demo.load --cluster URI --log NAME --root DIR [--records-per-second N] [--hold-at N] < FILES

It looks where the log ends and goes on there: record n of the input has offset n, so a successor neither loses nor
doubles a line. On stdout it says, a JSON object per line, where it began and how far its records are acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quire.cli.console.failures import report
from quire.cli.console.options import run
from quire.cli.demo.bulk import lines_of
from quire.core.errors import WindowFullError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quire.cli.demo.bulk import InputLine

GROUP: Final = 512
"""Records between two looks at the clock and at the acknowledgements."""


def say(**facts: object) -> None:
    """One line for the process that watches."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def load(
    cluster: str, log_name: str, records: Iterator[InputLine], rate: int, hold_at: int | None = None
) -> None:
    """Append the records that the log does not have yet.

    Args:
        cluster: its URI.
        log_name: which log.
        records: the whole input, in order.
        rate: most records in a second; 0 is as fast as it goes.
        hold_at: how many records the log has when it waits to be killed, however short the input is.
    """
    import quire

    began = time.monotonic()
    async with quire.connect(cluster) as client, await client.log(log_name).open_writer() as writer:
        start = (await client.log(log_name).describe()).end_offset
        say(opened=start, seconds=round(time.monotonic() - began, 3))
        rest = itertools.islice(records, start, hold_at)
        end = await _append(writer, rest, start, rate)
        if hold_at is not None:
            await asyncio.Event().wait()
        say(done=end)


async def _append(writer: Any, records: Iterator[InputLine], start: int, rate: int) -> int:
    said = start

    def acknowledged(future: asyncio.Future[int]) -> None:
        nonlocal said
        if not future.cancelled() and future.exception() is None:
            said = future.result() + 1
            say(acknowledged=said)

    count = 0
    began = time.monotonic()
    while group := list(itertools.islice(records, GROUP if not rate else max(1, min(GROUP, rate // 20)))):
        for line in group:
            while True:
                try:
                    last = writer.append_nowait(line.value, key=line.key)
                    break
                except WindowFullError:
                    await writer.drain()
        last.add_done_callback(acknowledged)
        count += len(group)
        late = time.monotonic() - began - count / rate if rate else 0.0
        await asyncio.sleep(max(0.0, -late))
    await writer.drain()
    return start + count


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a process."""
    parser = argparse.ArgumentParser(prog="quire.cli.demo.load")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--records-per-second", type=int, default=0)
    parser.add_argument("--hold-at", type=int)
    options = parser.parse_args(arguments)
    files = [
        options.root / name for name in sys.stdin.buffer.read().decode("utf-8", "surrogateescape").split("\0")
    ]
    try:
        records = lines_of(options.root, files)
        run(load(options.cluster, options.log, records, options.records_per_second, options.hold_at))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the top of the process: all is reported
        return report(error, as_json=True, stream=sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
