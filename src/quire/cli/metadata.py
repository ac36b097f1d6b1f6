"""`quire metadata …`: the store behind a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from quire.cli.console.asking import YesOption, confirm
from quire.cli.console.named_clusters import without_password
from quire.cli.console.opening import with_cluster
from quire.cli.console.options import option, run
from quire.cli.console.output import Output

app = typer.Typer(help="The metadata store behind a cluster: make one, look into it.")

ForceOption = Annotated[
    bool, option("--force", "Delete what is there first, with every ledger and log in it.")
]


@app.callback()
def metadata() -> None:
    """The metadata store behind a cluster."""


@app.command("format")
@with_cluster
def format_(uri: str, out: Output, force: ForceOption = False, yes: YesOption = False) -> None:
    """Make the metadata of a new cluster. In ZooKeeper it is BookKeeper's own, and Java bookies may join.

    With --force what is there is deleted first, after a question.
    """
    if force:
        confirm(
            f"Delete every ledger and log of {without_password(uri)} and make an empty cluster?",
            "--force deletes the metadata of every ledger and log",
            yes=yes,
        )
    from quire.metadata.connect import format_store

    instance = run(format_store(uri, force=force))
    text = f"Cluster  {uri}  (instance {instance})"
    out.result({"cluster": uri, "instance": instance}, text, "Start bookies with `quire bookie`.")
