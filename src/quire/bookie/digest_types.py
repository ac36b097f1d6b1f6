"""Which digest a ledger has, for clients that do not say: read once from the metadata, in the background.

V2 and V3 adds carry no digest type, and a guess would refuse good entries: until it is known they are not checked.

Source: decision on the digest type of BookKeeper's adds, `docs/formats/bookkeeper-protocol.md`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from quire.core.errors import NoSuchLedgerError, QuireError
from quire.core.ids import LedgerId
from quire.core.ledger_metadata import DigestType
from quire.metadata.ledgers import LedgerStore
from quire.wire.entry import EntryDigest

log = logging.getLogger(__name__)

KEPT_MAX: Final = 4096
ASKING_MAX: Final = 16
"""So many ledgers are looked up at one time; others are asked for with a later add of theirs."""


class DigestTypes:
    """The digest types of the ledgers that lately were added to over V2 or V3.

    Attributes:
        mismatches: adds refused because their digest was wrong.
    """

    def __init__(self, ledgers: LedgerStore) -> None:
        self._ledgers = ledgers
        self._known: dict[int, DigestType | None] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._checkers = {kind: EntryDigest(kind, b"") for kind in (DigestType.CRC32, DigestType.CRC32C)}
        self.mismatches = 0

    def get(self, ledger_id: int) -> DigestType | None:
        """The ledger's digest type; None while it is not known, and then it is looked up."""
        try:
            return self._known[ledger_id]
        except KeyError:
            pass
        if ledger_id not in self._asking and len(self._asking) < ASKING_MAX:
            self._asking[ledger_id] = asyncio.get_running_loop().create_task(
                self._ask(LedgerId(ledger_id)), name=f"digest type of ledger {ledger_id}"
            )
        return None

    def checker(self, kind: DigestType | None) -> EntryDigest | None:
        """What checks entries of a type without the ledger's password; None where nothing can."""
        return None if kind is None else self._checkers.get(kind)

    def close(self) -> None:
        """The bookie stops."""
        for task in self._asking.values():
            task.cancel()

    async def _ask(self, ledger_id: LedgerId) -> None:
        try:
            record, _ = await self._ledgers.read(ledger_id)
            found: DigestType | None = record.digest_type
        except NoSuchLedgerError:
            found = None
        except QuireError as error:
            log.info("the digest type of ledger %d is not known yet: %s", ledger_id, error)
            return
        finally:
            self._asking.pop(ledger_id, None)
        while len(self._known) >= KEPT_MAX:
            del self._known[next(iter(self._known))]
        self._known[ledger_id] = found
