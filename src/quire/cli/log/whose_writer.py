"""Whose writer a command would end: looked up, said, asked for.

A log's head names its leader, and the election in the metadata store says whether that writer is there. Both are advice:
another may come between the look and the command, and only fences and the compare-and-swap of the list decide.

Source: docs/protocol/log.md.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from quire.cli.console.asking import can_ask, confirm
from quire.cli.console.opening import Ask, connected
from quire.cli.console.options import option, run
from quire.core.errors import LogLedError, MisuseError, NoSuchLogError

if TYPE_CHECKING:
    from quire.cli.console.output import Output
    from quire.log.client import QuireClient

EndsWriterOption = Annotated[
    bool, option("--yes -y", "End the log's writer, if there is one, without asking.")
]


class LeaderStanding(NamedTuple):
    """Who leads a log.

    Attributes:
        epoch: of the newest leader.
        host: where the newest leader runs or ran; "" when it ended cleanly.
        writer: names the writer that is there now; "" when none is.
    """

    epoch: int
    host: str
    writer: str

    @property
    def writer_host(self) -> str:
        """Where the writer that is there now runs."""
        return self.writer.partition("@")[2] or self.writer

    @property
    def facts(self) -> dict[str, object]:
        """For a JSON line."""
        state = "leads" if self.writer else ("ended without closing" if self.host else "none")
        return {"epoch": self.epoch, "host": self.writer_host or self.host, "state": state}


async def standing_of(client: QuireClient, name: str) -> LeaderStanding:
    """Who leads a log now.

    Raises:
        NoSuchLogError: there is no such log.
    """
    from quire.log.electing import StoreElector

    head = await client.log(name).identify()
    leader = await StoreElector(client.store).candidacy(head.log_id, "").leader()
    return LeaderStanding(head.leader.epoch, head.leader.host, leader or "")


class Agreement(NamedTuple):
    """Which writers a command may end.

    Attributes:
        does: what the command does, as `Appending to log x`.
        every: it may end any (`--yes`).
        writer: it may end this one; "" is none.
    """

    does: str
    every: bool = False
    writer: str = ""

    async def check(self, client: QuireClient, name: str, out: Output, *, or_wait: bool = False) -> None:
        """Refuse to end a writer that was not agreed to.

        Args:
            client: the cluster.
            name: the log.
            out: says which writer is ended.
            or_wait: the command has `--wait`.

        Raises:
            LogLedError: it would end another one.
        """
        standing = await standing_of(client, name)
        if not standing.writer or standing.writer == self.writer:
            return
        if self.every:
            if not out.as_json:
                out.note(f"{self.does} ends {_writer(standing)}.")
            return
        text = f"{self.does} would end {_writer(standing)}, and nothing was done. Give --yes to end it" + (
            ", or --wait to wait until it has ended." if or_wait else "."
        )
        raise LogLedError(text, log=name, host=standing.writer_host, epoch=standing.epoch)


def ending_writer(does: str) -> Ask:
    """What asks before a command ends a log's writer, unless it waits for it or recovers nothing.

    Args:
        does: what the command does, as of `Agreement`, with its arguments in braces.

    Raises:
        MisuseError: of what asks: the writer is to be waited for and to be ended.
    """

    def ask(uri: str, *, name: str, yes: EndsWriterOption = False, **given: object) -> dict[str, Any]:
        text = does.format(name=name)
        if yes and given.get("wait"):
            raise MisuseError("--wait waits for the log's writer, --yes ends it: leave one of them out.")
        if given.get("wait") or not given.get("recover", True):
            return {"agreed": Agreement(text, every=yes)}
        return {"agreed": agree(uri, name, text, yes=yes)}

    return ask


def agree(uri: str, name: str, does: str, *, yes: bool) -> Agreement:
    """Ask at a terminal before a command ends a log's writer; elsewhere `Agreement.check` refuses. Runs its own event loop.

    Args:
        uri: the cluster.
        name: the log.
        does: as of `Agreement`.
        yes: the option `--yes`.
    """
    if yes or not can_ask():
        return Agreement(does, every=yes)

    async def look() -> LeaderStanding | None:
        async with connected(uri) as client:
            with suppress(NoSuchLogError):  # the command makes it, or says that there is none
                return await standing_of(client, name)
        return None

    standing = run(look())
    if standing is None or not standing.writer:
        return Agreement(does)
    confirm(f"{does} ends {_writer(standing)}, which can confirm nothing more. Go on?", "", yes=False)
    return Agreement(does, writer=standing.writer)


def _writer(standing: LeaderStanding) -> str:
    return f"the writer at {standing.writer_host} (epoch {standing.epoch})"
