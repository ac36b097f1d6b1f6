"""What other bookies hold of a ledger, for a bookie that may drop its own copies: it asks as a client does.

Source: docs/protocol/collection.md, "Over-replicated entries"; `docs/formats/native-protocol.md`, LIST_ENTRIES.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from quire.client.bookies.bookies import BookieClient
from quire.client.connecting import security_of_environment
from quire.client.repairing.ledger_repair import access_of
from quire.client.repairing.replica_lists import replica_list
from quire.core.answers import Answer
from quire.core.errors import WrongPasswordError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.replica import Replica
from quire.metadata.bookies import BookieRegistry
from quire.metadata.store import MetadataStore

TIMEOUT_MS: Final = 10_000


class MemberLister:
    """Asks bookies what they hold, over connections that are made when the first is asked.

    Args:
        store: the cluster's metadata; its caller closes it.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._bookies: BookieClient | None = None

    async def __call__(self, record: LedgerMetadata, members: Sequence[BookieId]) -> dict[BookieId, Replica]:
        """The lists of the bookies that sent one; none where the ledger's record has no password.

        Args:
            record: the ledger's record.
            members: the bookies of its ensembles that are asked.
        """
        try:
            access = access_of(record, None)
        except WrongPasswordError:
            return {}
        bookies = await self._connected()
        asked = (replica_list(bookies, member, record, access, timeout_ms=TIMEOUT_MS) for member in members)
        responses = await asyncio.gather(*asked)
        return {
            member: Replica.of(each, record)
            for member, each in zip(members, responses, strict=True)
            if each.answer is Answer.OK
        }

    async def _connected(self) -> BookieClient:
        if self._bookies is None:
            bookies = BookieClient(
                BookieRegistry(self._store), self._store.instance_id, security=security_of_environment()
            )
            await bookies.start()
            self._bookies = bookies
        return self._bookies

    async def close(self) -> None:
        """Close its connections."""
        if self._bookies is not None:
            await self._bookies.close()
            self._bookies = None
