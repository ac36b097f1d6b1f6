"""The client that `quire.connect` gives: ledgers, and logs on top of them."""

from __future__ import annotations

from quire.client.client import Client
from quire.log.config import LogConfig
from quire.log.electing import Elector
from quire.log.heads import LogHeads
from quire.log.log import Log


class QuireClient(Client):
    """A `Client` that knows logs."""

    def log(
        self,
        name: str,
        password: bytes = b"",
        config: LogConfig | None = None,
        *,
        elector: Elector | None = None,
    ) -> Log:
        """A log by name; nothing is asked of the cluster yet.

        Args:
            name: its name.
            password: the one its ledgers are made with.
            config: settings of this handle.
            elector: says who should lead the log; None: the election in the cluster's metadata store.

        Raises:
            MisuseError: the name cannot be one.
        """
        return Log(self, name, password, config, elector=elector)

    async def logs(self) -> list[str]:
        """The names of all logs, sorted."""
        return await LogHeads(self.store).names()

    async def delete_log(self, name: str, password: bytes = b"") -> None:
        """Delete a log with all its ledgers; see `Log.delete`.

        Raises:
            NoSuchLogError: there is none.
        """
        await self.log(name, password).delete()
