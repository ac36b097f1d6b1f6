"""`quire log read` and `quire log tail`: records of a log, from where and to where is wanted, in the form that is wanted."""

from __future__ import annotations

from typing import Annotated

import typer

from quire.cli.console.options import ClusterOption, FrameOption, JsonOption, cluster_uri, run
from quire.cli.console.output import Output
from quire.cli.log.parameters import (
    DelimitedOption,
    EndOption,
    FromTimeOption,
    KeyDelimiterOption,
    LastOption,
    LogPasswordOption,
    NameArgument,
    OutFormOption,
    StartOption,
    TimesOption,
    UntilOption,
)
from quire.cli.log.ranges import RecordSpan, records_of, span_of
from quire.cli.log.record_lines import Form, print_records, printed_as
from quire.cli.log.whose_writer import Agreement, EndsWriterOption, agree, check_agreed

FollowOption = Annotated[bool, typer.Option("--follow", "-F", help="Go on with what is appended later.")]


def read(
    name: NameArgument,
    start: StartOption = None,
    from_time: FromTimeOption = None,
    last: LastOption = None,
    end: EndOption = None,
    until: UntilOption = None,
    follow: FollowOption = False,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="First close what is open, so that everything that a dead writer had acknowledged is read. "
            "It ends a writer that lives.",
        ),
    ] = False,
    form: OutFormOption = None,
    key_delimiter: KeyDelimiterOption = None,
    delimited: DelimitedOption = False,
    times: TimesOption = False,
    yes: EndsWriterOption = False,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print records: each value and a line feed, or length-delimited, or one JSON object per line, or as -f says.

    Lines have values alone; the other forms have keys, headers and tombstones, and `log append --format` takes them. A
    beginning before the first record that is left, or beyond the end, is refused (exit code 1); an end that is not
    reached yet is where the records end, or, with --follow, is waited for. Times may be in any order: --from-time begins
    with the first record as late as that, and --until ends before the first one as late as that.
    """
    wanted = printed_as(
        form, name, delimited=delimited, as_json=as_json, key_delimiter=key_delimiter, times=times
    )
    span = span_of(
        start=start, end=end, from_time=from_time, last=last, until=until, follow=follow, recover=recover
    )
    does = f"Reading log {name} with --recover"
    uri, out = cluster_uri(cluster), Output(as_json=as_json or wanted is Form.JSON)
    agreed = agree(uri, name, does, yes=yes) if recover else Agreement()

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            if recover:
                await check_agreed(client, name, does, agreed, out)
            records = records_of(client.log(name, password.encode()), span)
            await print_records(out, records, wanted, at_once=follow)

    run(work())


def tail(
    name: NameArgument,
    count: Annotated[
        int, typer.Option("--lines", "--last", "-n", help="Begin this many records before the end.", min=0)
    ] = 10,
    until: UntilOption = None,
    form: OutFormOption = None,
    key_delimiter: KeyDelimiterOption = None,
    delimited: DelimitedOption = False,
    times: TimesOption = False,
    cluster: ClusterOption = None,
    frame_bytes_max: FrameOption = None,
    password: LogPasswordOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print the last records and then each new one, until Ctrl-C; the same as `log read --last N --follow`."""
    wanted = printed_as(
        form, name, delimited=delimited, as_json=as_json, key_delimiter=key_delimiter, times=times
    )
    span: RecordSpan = span_of(last=count, until=until, follow=True)
    uri, out = cluster_uri(cluster), Output(as_json=as_json or wanted is Form.JSON)

    async def work() -> None:
        import quire

        async with quire.connect(uri, frame_bytes_max=frame_bytes_max) as client:
            records = records_of(client.log(name, password.encode()), span)
            await print_records(out, records, wanted, at_once=True)

    run(work())
