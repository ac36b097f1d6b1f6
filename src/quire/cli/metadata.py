"""`quire metadata …`: the store behind a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from quire.cli.console.asking import YesOption, confirm
from quire.cli.console.named_clusters import without_password
from quire.cli.console.options import ClusterOption, JsonOption, cluster_uri, run
from quire.cli.console.output import Output

app = typer.Typer(help="The metadata store behind a cluster: make one, look into it.")

ForceOption = Annotated[
    bool,
    typer.Option("--force", help="Delete what is there first, with every ledger and log in it."),
]


@app.callback()
def metadata() -> None:
    """The metadata store behind a cluster."""


@app.command("format")
def format_(
    cluster: ClusterOption = None,
    force: ForceOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the metadata of a new cluster. In ZooKeeper it is BookKeeper's own, and Java bookies may join.

    With --force what is there is deleted first, after a question.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)
    if force:
        confirm(
            f"Delete every ledger and log of {without_password(uri)} and make an empty cluster?",
            "--force deletes the metadata of every ledger and log",
            yes=yes,
        )

    async def work() -> None:
        from quire.metadata.connect import format_store

        instance = await format_store(uri, force=force)
        facts = {"cluster": uri, "instance": instance}
        out.result(facts, f"Cluster  {uri}  (instance {instance})" + "\nStart bookies with `quire bookie`.")

    run(work())
