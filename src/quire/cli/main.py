"""The `quire` command: composes the sub-commands, each in its own file."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from quire.cli import bench, context, metadata, spark, testing
from quire.cli.cluster import bookie, cluster, top
from quire.cli.cluster.autorecovery import autorecovery
from quire.cli.console.options import option
from quire.cli.console.process import end_on_sigterm, prepare_streams
from quire.cli.demo.command import demo
from quire.cli.group import HandledGroup
from quire.cli.ledger import ledger, stream
from quire.cli.local import up
from quire.cli.log import log

EPILOG = (
    "Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 outcome unknown (it may or may not have happened); "
    "4 a bookie whose identity another process has; 5 the cluster needs attention (`cluster status`, `cluster bookies`, "
    "`cluster health`); 130 Ctrl-C or SIGTERM."
)

app = typer.Typer(
    cls=HandledGroup,
    name="quire",
    help="A replicated log store: ledgers, logs, the bookies that hold them.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        import platform

        from quire.core.version import VERSION

        sys.stdout.write(f"quire {VERSION} (Python {platform.python_version()}, {platform.system()})\n")
        raise typer.Exit


@app.callback()
def root(
    cluster: Annotated[
        str | None,
        option(
            "--cluster CLUSTER",
            "The cluster, as the commands take it. Options may stand before the command or after it.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "Print one JSON object per line.")] = False,
    version: Annotated[
        bool, option("--version", "Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A replicated log store: ledgers, logs, the bookies that hold them."""


app.command("up")(up.up)
app.command("demo")(demo)
app.add_typer(bookie.app, name="bookie")
app.command("autorecovery")(autorecovery)
app.command("top")(top.top)
testing.add_commands(app)
app.add_typer(ledger.app, name="ledger")
app.add_typer(log.app, name="log")
app.add_typer(stream.app, name="stream")
app.add_typer(cluster.app, name="cluster")
app.add_typer(context.app, name="context")
app.add_typer(metadata.app, name="metadata")
app.add_typer(bench.app, name="bench")
app.add_typer(spark.app, name="spark")


def main() -> None:
    """Run the command line as a process of its own."""
    prepare_streams()
    end_on_sigterm()
    app(prog_name="quire")


if __name__ == "__main__":
    main()
