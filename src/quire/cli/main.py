"""The `quire` command: composes the sub-commands, each in its own file."""

from __future__ import annotations

import typer

from quire.cli import (
    bench,
    bookie,
    cluster,
    ledger,
    log,
    metadata,
    spark,
    testing,
    up,
)
from quire.cli.demo.command import demo
from quire.cli.group import HandledGroup

EPILOG = (
    "Exit codes: 0 done; 1 refused or failed; 2 wrong usage; 3 outcome unknown (it may or may not have happened); "
    "5 the cluster needs attention (`cluster status`, `cluster bookies`); 130 Ctrl-C."
)

app = typer.Typer(
    cls=HandledGroup,
    name="quire",
    help="A replicated log store: ledgers, logs, the bookies that hold them.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("up")(up.up)
app.command("demo")(demo)
app.command("bookie")(bookie.bookie)
testing.add_commands(app)
app.add_typer(ledger.app, name="ledger")
app.add_typer(log.app, name="log")
app.add_typer(cluster.app, name="cluster")
app.add_typer(metadata.app, name="metadata")
app.add_typer(bench.app, name="bench")
app.add_typer(spark.app, name="spark")


def main() -> None:
    """Run the command line (the entry point of the `quire` script)."""
    app(prog_name="quire")


if __name__ == "__main__":
    main()
