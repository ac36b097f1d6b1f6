"""`quire bookie`: one bookie in the foreground; and the commands about one bookie."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from quire.cli.cluster.forget import forget
from quire.cli.cluster.space import collect, compact, space
from quire.cli.console.options import (
    ClusterOption,
    CollectOption,
    FrameOption,
    JsonOption,
    SecurityOption,
    SegmentOption,
    TombstonesOption,
    cluster_uri,
    host_and_port,
    option,
    run,
)
from quire.cli.console.output import Output
from quire.core.errors import MisuseError

DirOption = Annotated[Path | None, option("--dir", "Where its segments and its identity lie [required].")]
ListenOption = Annotated[str, option("--listen", "host:port to listen on; port 0 takes any free one.")]
AdvertiseOption = Annotated[
    str | None,
    option(
        "--advertise HOST:PORT",
        "The address that clients connect to, port 0: the one it listens on; needed where --listen names every "
        "address, as 0.0.0.0 does [default: what --listen says].",
        envvar="QUIRE_ADVERTISE",
    ),
]
UnknownOption = Annotated[
    bool,
    option(
        "--unknown-is-error",
        "Answer V3 clients 501 instead of 507 where entries may be lost: for Java clients too old to know 507.",
    ),
]
AddressOption = Annotated[
    bool,
    option(
        "--id-from-address",
        "The announced HOST:PORT is the id of a new directory, for Java clients before 4.12. Such a bookie cannot "
        "move to another address.",
    ),
]
AdoptOption = Annotated[
    bool,
    option(
        "--adopt", "The directory lost its cookie and is this bookie's: take the one that the cluster keeps."
    ),
]


app = typer.Typer()
app.command("forget")(forget)
app.command("space")(space)
app.command("collect")(collect)
app.command("compact")(compact)


@app.callback(invoke_without_command=True)
def bookie(
    context: typer.Context,
    directory: DirOption = None,
    cluster: ClusterOption = None,
    listen: ListenOption = "127.0.0.1:3181",
    advertise: AdvertiseOption = None,
    name: Annotated[
        str | None, option("--name", "The stable part of its id [default: the directory's name].")
    ] = None,
    security: SecurityOption = None,
    frame_bytes_max: FrameOption = None,
    segment_bytes: SegmentOption = None,
    collect_every: CollectOption = 60.0,
    tombstones_for: TombstonesOption = 3600.0,
    create: Annotated[
        bool, option("--create", "Make the cluster's metadata store if it does not exist.")
    ] = False,
    unknown_is_error: UnknownOption = False,
    id_from_address: AddressOption = False,
    adopt: AdoptOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run one bookie in the foreground. Ctrl-C stops it cleanly; SIGHUP reads certificates and users again."""
    if context.invoked_subcommand is not None:
        return
    if directory is None:
        raise MisuseError("Missing option --dir: it says where the bookie's segments and its identity lie.")
    from quire.bookie.config import BookieConfig
    from quire.cli.local.serve import Ready, serve, set_up_logging, storage_for
    from quire.env.real import require_linux

    out = Output(as_json=as_json)
    uri = cluster_uri(cluster)
    host, port = host_and_port(listen)
    set_up_logging()

    def ready(facts: Ready) -> None:
        out.result(
            asdict(facts), f"{facts.id} serves on {facts.address} from {facts.directory}. Ctrl-C stops it."
        )

    stable = name or directory.absolute().name
    config = BookieConfig(
        directory=directory,
        host=host,
        port=port,
        advertise=None if advertise is None else host_and_port(advertise, "--advertise"),
        name=stable,
        unknown_is_error=unknown_is_error,
        id_from_address=id_from_address,
        adopt=adopt,
        frame_bytes_max=frame_bytes_max,
        storage=storage_for(directory, segment_bytes, frame_bytes_max),
        garbage_seconds=collect_every,
        tombstone_seconds=tombstones_for,
    )
    require_linux()
    run(serve(config, uri, create=create, until_eof=False, on_ready=ready, security=security))
    out.note("Stopped cleanly.")
