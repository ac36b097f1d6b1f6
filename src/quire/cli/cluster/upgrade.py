"""`quire cluster upgrade`: the metadata of a cluster gets the newest format, once every bookie is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quire.cli.console.options import ClusterOption, JsonOption, cluster_uri, run
from quire.cli.console.output import Output

if TYPE_CHECKING:
    from quire.metadata.store import Upgraded

ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Go on although bookies are not registered: one that comes back with an older program is refused.",
    ),
]


def upgrade(cluster: ClusterOption = None, force: ForceOption = False, as_json: JsonOption = False) -> None:
    """Bring the metadata to the newest format, in which every value has a checksum.

    Every bookie must have been started with this version before. Programs of older versions refuse the metadata from
    then on; nothing takes that back.
    """
    uri, out = cluster_uri(cluster), Output(as_json=as_json)

    async def work() -> None:
        from quire.core.errors import CorruptMetadataError
        from quire.metadata.connect import open_store
        from quire.metadata.upgrading import upgrade_cluster

        async with await open_store(uri) as store:
            done = await upgrade_cluster(store, force=force)
            facts = {
                "cluster": uri,
                "format": store.format,
                "before": done.before if done is not None else None,
                "checked": done.checked if done is not None else 0,
                "damaged": list(done.damaged) if done is not None else [],
            }
        out.result(facts, _sentence(done))
        if done is not None and done.damaged:
            raise CorruptMetadataError(
                f"{len(done.damaged)} values are damaged and were left as they are: {', '.join(done.damaged[:20])};"
                " put them back from a backup",
                keys=list(done.damaged),
            )

    run(work())


def _sentence(done: Upgraded | None) -> str:
    if done is None:
        return (
            "There is nothing to do: this cluster's metadata store keeps values without a format of Quire's."
        )
    if done.before > 1 and not done.checked:
        return f"There is nothing to do: the metadata has format {done.before} already."
    if done.before > 1:
        return f"An upgrade that was cut short is finished: {done.checked:,} more values have a checksum."
    return (
        f"The metadata has format 2 now: {done.checked:,} values got a checksum. Programs older than 0.2 refuse it from"
        " now on; start again those that still have it open."
    )
