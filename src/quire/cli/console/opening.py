"""What a command about a cluster is given: the cluster, opened as a client, and where its results go.

    @app.command()
    @with_client()
    async def tail(client: QuireClient, out: Output, ledger_id: LedgerArgument, first: FirstOption = 0) -> None:

After the command's own options stand those that all have: `--cluster`, `--frame-bytes-max` of what moves entries, `--json`. An
argument that is a dataclass stands for an option for each of its fields; what contradicts itself there is refused first.
What the command returns is its exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

import typer

from quire.cli.console.asking import YesOption, confirm
from quire.cli.console.options import FRAMES, ClusterOption, FrameOption, JsonOption, cluster_uri, run
from quire.cli.console.output import Output
from quire.env.typed_options import grouped, options_of, take_options

if TYPE_CHECKING:
    from quire.log.client import QuireClient

Command = Callable[..., None]
Work = Callable[..., Coroutine[Any, Any, int | None]]
Ask = Callable[..., dict[str, Any] | None]
"""Asks a person, before the cluster is opened and outside the event loop, which a question would hold up.

It gets the cluster's URI and the command's arguments, may have options of its own, and returns more arguments of the command.
"""
_OPENED: Final = {"QuireClient": object}


def with_client(ask: Ask | None = None, *, frames: bool = True) -> Callable[[Work], Command]:
    """Make a command of a coroutine function of a client, an output and the command's own arguments.

    Args:
        ask: asks first.
        frames: the command moves entries, so it takes `--frame-bytes-max`.
    """

    async def inside(work: Work, uri: str, out: Output, given: dict[str, Any]) -> int | None:
        async with connected(uri) as client:
            return await work(client, out, **given)

    limit = {"frame_bytes_max": (FrameOption, None)} if frames else {}
    shared = {"cluster": (ClusterOption, None), **limit, "as_json": (JsonOption, False)}
    return lambda work: _command(
        lambda uri, out, **given: run(inside(work, uri, out, given)), work, ask, shared
    )


def with_cluster(work: Callable[..., int | None]) -> Command:
    """Make a command of a function of the cluster's URI, an output and the command's own arguments; it opens nothing."""
    return _command(work, work, None, {"cluster": (ClusterOption, None), "as_json": (JsonOption, False)})


def sure(question: str, why: str) -> Ask:
    """What asks before something is destroyed, as `confirm`; the command's arguments may stand in the texts in braces."""

    def ask(_uri: str, *, yes: YesOption = False, **given: object) -> None:
        confirm(question.format(**given), why.format(**given), yes=yes)

    return ask


def connected(uri: str) -> AbstractAsyncContextManager[QuireClient]:
    """A client of a cluster, with the limit of frames that the command was given."""
    import quire

    return quire.connect(uri, frame_bytes_max=FRAMES.get())


def _command(
    begin: Callable[..., int | None],
    work: Callable[..., Any],
    ask: Ask | None,
    shared: dict[str, tuple[Any, Any]],
) -> Command:
    options, groups = options_of(work, _OPENED)
    asked = (
        {} if ask is None else {name: one for name, one in options_of(ask)[0].items() if name not in options}
    )

    def command(**given: Any) -> None:
        given = grouped(given, groups)
        uri, out = cluster_uri(given.pop("cluster")), Output(as_json=given.pop("as_json"))
        FRAMES.set(given.pop("frame_bytes_max", None))
        answers = ask(uri, **given) if ask is not None else None
        own = {name: value for name, value in given.items() if name not in asked}
        if code := begin(uri, out, **own, **(answers or {})):
            raise typer.Exit(int(code))

    take_options(command, options | asked | shared, work)
    return command
