"""`quire up`: a whole cluster on this machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.console.failures import EXIT_ATTENTION, EXIT_FAILED
from quire.cli.console.named_clusters import lasting, uri_of
from quire.cli.console.options import FrameOption, JsonOption, SecurityOption, SegmentOption, option
from quire.cli.console.output import Output
from quire.cli.local.first_steps import data_directory, first_steps
from quire.cli.local.local_bookie import LocalBookie
from quire.cli.local.local_cluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

DirOption = Annotated[
    Path | None,
    option(
        "--dir",
        "Where everything lies; a second start continues with it [default: quire in the user's data directory, which is "
        "$XDG_DATA_HOME or ~/.local/share].",
    ),
]
OtherClusterOption = Annotated[
    str | None,
    option(
        "--cluster CLUSTER",
        "Add the bookies to this cluster instead of making one; QUIRE_CLUSTER and contexts in use do not count here.",
    ),
]

RecoversOption = Annotated[
    bool, option("--autorecovery/--no-autorecovery", "Repair the copies that lost bookies had, by itself.")
]


def up(
    directory: DirOption = None,
    bookies: Annotated[
        int | None,
        option("--bookies", "How many bookies [default: those in the directory, or 3].", min=1, max=64),
    ] = None,
    cluster: OtherClusterOption = None,
    port: Annotated[
        int | None,
        option(
            "--port", "The first bookie's port, the others count up [default: free ports].", min=1, max=65535
        ),
    ] = None,
    security: SecurityOption = None,
    frame_bytes_max: FrameOption = None,
    segment_bytes: SegmentOption = None,
    recovers: RecoversOption = True,
    as_json: JsonOption = False,
) -> None:
    """Run a whole cluster on this machine: one process per bookie, and the metadata. Ctrl-C stops it cleanly.

    Without --dir it becomes the context `local`, which commands mean if no other is in use. A bookie that does not start is
    named; the others serve without it, and the exit code is 5 in the end.
    """
    out = Output(as_json=as_json)
    named = cluster
    with signal_pipe() as stop:
        local = LocalCluster(
            directory or data_directory(),
            bookies,
            cluster=lasting(uri_of(named)) if named else None,
            port=port,
            security=security,
            frame_bytes_max=frame_bytes_max,
            segment_bytes=segment_bytes,
            recovers=recovers,
        )
        try:
            local.start(some=True)
            _say_ready(out, local)
            while any(bookie.running for bookie in local.bookies):
                dead = local.wait(stop)
                if not dead:
                    break
                for bookie in dead:
                    _say_dead(out, local, bookie)
            else:
                out.note("No bookie is running; stopping.")
        finally:
            unclean = local.stop()
            for bookie in unclean:
                out.note(
                    f"{bookie.name} did not stop cleanly: it {bookie.how_it_ended()}; its log: {bookie.log}"
                )
    if not unclean:
        out.note("Stopped cleanly.")
    raise typer.Exit(EXIT_FAILED if unclean else EXIT_ATTENTION if local.failed else 0)


def _say_ready(out: Output, local: LocalCluster) -> None:
    for name in local.moved:
        out.note(f"{name} got another port: its former one is in use by another program.")
    steps = first_steps(local)
    for bookie, why in local.failed:
        out.note(
            f"{why.message}\nThe others go on; when they are stopped, `quire up` ends with {EXIT_ATTENTION} for {bookie.name}."
        )
    started = [bookie for bookie in local.bookies if bookie.process is not None]
    facts = {"cluster": local.uri, "bookies": [bookie.facts() for bookie in started]}
    if local.failed:
        facts["failed"] = [{"name": bookie.name, "reason": why.message} for bookie, why in local.failed]
    lines = [f"  {bookie.id}  {bookie.address}  pid {bookie.pid}  {bookie.directory}" for bookie in started]
    end = "Ctrl-C stops it. A second start continues with its data."
    out.result(facts, f"Cluster {local.uri}", *lines, "", *steps, end)


def _say_dead(out: Output, local: LocalCluster, bookie: LocalBookie) -> None:
    if bookie is local.recovery:
        text = f"Auto-recovery {bookie.how_it_ended()}; its log: {bookie.log}. `quire autorecovery` runs it again."
        out.note(text)
        return
    words = ["quire", "bookie", "--dir", str(bookie.directory), "--cluster", local.uri]
    words += ["--listen", bookie.address, "--name", bookie.name]
    again = join(words + local.options)
    lines = bookie.last_lines()
    facts = {
        "event": "bookie_died",
        **bookie.facts(),
        "reason": bookie.how_it_ended(),
        "log": lines,
        "again": again,
    }
    shown = "".join(f"\n  | {line}" for line in lines)
    text = (
        f"{bookie.name} ({bookie.id}) {bookie.how_it_ended()}. The others go on. Start it again with\n  {again}\n"
        f"or restart `quire up`. The end of its log {bookie.log}:{shown}"
    )
    if out.as_json:
        out.result(facts)
    else:
        out.note(text)


@contextmanager
def signal_pipe() -> Iterator[int]:
    """SIGINT, SIGTERM and SIGHUP become readable on the descriptor this yields, instead of ending the process."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    former_wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    former = {number: signal.signal(number, lambda _number, _frame: None) for number in numbers}
    try:
        yield reader
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(former_wakeup)
        os.close(reader)
        os.close(writer)
