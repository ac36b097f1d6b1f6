"""`quire log read` and `quire log tail`: records of a log, from where and to where is wanted, in the form that is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from quire.cli.console.opening import with_client
from quire.cli.console.options import PasswordOption, option
from quire.cli.console.output import Output
from quire.cli.log.formats import Printer, escaped, is_format, printer
from quire.cli.log.parameters import (
    DelimitedOption,
    KeyDelimiterOption,
    NameArgument,
    OutFormOption,
    SpanOptions,
    TimesOption,
    UntilOption,
)
from quire.cli.log.ranges import records_of
from quire.cli.log.record_lines import Form, form_of, marked, print_records
from quire.cli.log.whose_writer import Agreement, ending_writer
from quire.core.errors import MisuseError

if TYPE_CHECKING:
    from quire.log.client import QuireClient

FollowOption = Annotated[bool, option("--follow -F", "Go on with what is appended later.")]


@dataclass(frozen=True)
class PrintOptions:
    """In which form records are printed."""

    form: OutFormOption = None
    key_delimiter: KeyDelimiterOption = None
    delimited: DelimitedOption = False
    times: TimesOption = False

    def __post_init__(self) -> None:
        self.form_for("")

    def form_for(self, log: str, *, as_json: bool = False) -> Form | Printer:
        """How records of a log are printed: in a form, or as a format string has it.

        Raises:
            MisuseError: options name two ways, or one that there is not.
        """
        delimiter = self.key_delimiter
        if self.form is not None and is_format(self.form):
            if self.delimited or as_json or delimiter is not None:
                raise MisuseError(
                    "a format string says all of a record: leave the other options of its form out."
                )
            return printer(self.form, log)
        if self.form is not None and self.form not in set(Form):
            raise MisuseError(
                f"--format takes lines, delimited, json or a format string such as '%o %k %s\\n', not {self.form!r}."
            )
        named = form_of(self.form, delimited=self.delimited, as_json=as_json)
        if delimiter is not None:
            if named is not Form.LINES:
                raise MisuseError(f"--key-delimiter is for lines; {named} records have their keys anyway.")
            between = escaped(delimiter, "--key-delimiter")
            return lambda record: b"".join((record.key or b"", between, record.value or b"", b"\n"))
        if self.times and named is not Form.DELIMITED:
            raise MisuseError("--times is for --format delimited; json has times, lines have none.")
        return partial(marked, times=True) if self.times else named


@with_client(ending_writer("Reading log {name} with --recover"))
async def read(
    client: QuireClient,
    out: Output,
    agreed: Agreement,
    name: NameArgument,
    part: SpanOptions,
    how: PrintOptions,
    follow: FollowOption = False,
    recover: Annotated[
        bool,
        option(
            "--recover",
            "First close what is open, so that everything that a dead writer had acknowledged is read. "
            "It ends a writer that lives.",
        ),
    ] = False,
    password: PasswordOption = "",
) -> None:
    """Print records: each value and a line feed, or length-delimited, or one JSON object per line, or as -f says.

    Lines have values alone; the other forms have keys, headers and tombstones, and `log append --format` takes them. A
    beginning before the first record that is left, or beyond the end, is refused (exit code 1); an end that is not
    reached yet is where the records end, or, with --follow, is waited for. Times may be in any order: --from-time begins
    with the first record as late as that, and --until ends before the first one as late as that.
    """
    wanted = how.form_for(name, as_json=out.as_json)
    span = part.span(follow=follow, recover=recover)
    out = Output(as_json=out.as_json or wanted is Form.JSON)
    if recover:
        await agreed.check(client, name, out)
    await print_records(out, records_of(client.log(name, password.encode()), span), wanted, at_once=follow)


@with_client()
async def tail(
    client: QuireClient,
    out: Output,
    name: NameArgument,
    how: PrintOptions,
    count: Annotated[int, option("--lines --last -n", "Begin this many records before the end.", min=0)] = 10,
    until: UntilOption = None,
    password: PasswordOption = "",
) -> None:
    """Print the last records and then each new one, until Ctrl-C; the same as `log read --last N --follow`."""
    wanted = how.form_for(name, as_json=out.as_json)
    span = SpanOptions(last=count, until=until).span(follow=True)
    out = Output(as_json=out.as_json or wanted is Form.JSON)
    await print_records(out, records_of(client.log(name, password.encode()), span), wanted, at_once=True)
