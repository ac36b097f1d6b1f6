"""`quire context …`: names for clusters, and the one that commands mean where none is named."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from quire.cli.console.named_clusters import (
    NamedClusters,
    check_name,
    contexts_file,
    lasting,
    uri_of,
    without_password,
)
from quire.cli.console.options import JsonOption, argument, option
from quire.cli.console.output import Output
from quire.core.errors import AlreadyExistsError, MisuseError

app = typer.Typer(help="Names for clusters: add, use, list, remove.")


def names() -> list[str]:
    """The names, for shell completion."""
    return sorted(NamedClusters.load().clusters)


NameArgument = Annotated[str, argument("NAME", "The context's name.", autocompletion=names)]


@app.callback()
def context() -> None:
    """Names for clusters: add, use, list, remove."""


@app.command()
def add(
    name: Annotated[str, argument("NAME", "The context's name.")],
    cluster: Annotated[str, argument("CLUSTER", "A URI, a directory of `quire up`, or a metadata file.")],
    use: Annotated[bool, option("--use", "Use it from now on.")] = False,
    replace: Annotated[bool, option("--replace", "Give a name that exists another cluster.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give a cluster a name; the cluster need not run."""
    known = NamedClusters.load()
    uri = lasting(uri_of(cluster))
    if check_name(name) in known.clusters and known.clusters[name] != uri and not replace:
        shown = without_password(known.clusters[name])
        raise AlreadyExistsError(f"The context {name} is {shown}: give --replace, or another name.")
    known.clusters[name] = uri
    if use:
        known.current = name
    known.save()
    then = "it is in use" if known.current == name else f"`quire context use {name}` puts it in use"
    facts = {"context": name, "cluster": without_password(uri), "in_use": known.current == name}
    Output(as_json=as_json).result(facts, f"Context {name} is {without_password(uri)}; {then}.")


@app.command()
def use(
    name: Annotated[str | None, argument("[NAME]", "The context's name.", autocompletion=names)] = None,
    none: Annotated[bool, option("--none", "Use no context any more.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the cluster that commands mean without --cluster and QUIRE_CLUSTER."""
    if none == (name is not None):
        raise MisuseError("Name one context, or give --none.")
    known = NamedClusters.load()
    uri = known.needed(name) if name is not None else None
    known.current = name
    known.save()
    out = Output(as_json=as_json)
    shown = without_password(uri) if uri else None
    out.result(
        {"context": name, "cluster": shown},
        f"Context {name} ({shown}) is in use." if name else "No context is in use.",
    )
    if os.environ.get("QUIRE_CLUSTER") and name:
        out.note("QUIRE_CLUSTER is set in this shell and comes first; `unset QUIRE_CLUSTER` ends that.")


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the contexts; passwords in URIs are not shown."""
    known = NamedClusters.load()
    rows = [
        {"name": name, "cluster": without_password(uri), "in_use": name == known.current}
        for name, uri in sorted(known.clusters.items())
    ]
    none = f"No contexts in {contexts_file()}; `quire context add NAME CLUSTER` adds one."
    Output(as_json=as_json).rows(("name", "cluster", "in_use"), rows, none=none)


@app.command()
def remove(name: NameArgument, as_json: JsonOption = False) -> None:
    """Forget a name; the cluster itself is left alone."""
    known = NamedClusters.load()
    uri = known.needed(name)
    del known.clusters[name]
    if known.current == name:
        known.current = None
    known.save()
    facts = {"context": name, "cluster": without_password(uri), "removed": True}
    Output(as_json=as_json).result(facts, f"Context {name} is removed; its cluster is left alone.")
