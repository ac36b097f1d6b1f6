"""The record `boots/<bookie>`: the boot number of a bookie's directory, shown to the cluster outside the data path.

Source: `docs/formats/metadata.md`, "Records"; `core/bookie/boot.py` decides what a record means.
"""

from __future__ import annotations

import logging

from quire.core.bookie.boot import BootState, Claim, Marker, claim, older_directory
from quire.core.errors import AlreadyExistsError, IdentityReplacedError, MetadataUnknownError
from quire.core.ids import BookieId
from quire.metadata.keys import boot_key
from quire.metadata.retries import Attempts
from quire.metadata.store import KeyMissingError, MetadataStore, VersionConflictError
from quire.wire.store_records import BOOT_CODEC, StoredBoot

log = logging.getLogger(__name__)


class BootRecord:
    """One bookie's record, written by compare-and-swap.

    Args:
        store: the cluster's metadata.
        bookie_id: whose record it is.

    Attributes:
        stored: what was read or written last; None: there is no record.
    """

    def __init__(self, store: MetadataStore, bookie_id: BookieId) -> None:
        self._store = store
        self._bookie = bookie_id
        self._key = boot_key(bookie_id)
        self._version: int | None = None
        self._unknown = b""
        self.stored: BootState | None = None

    async def read(self) -> BootState | None:
        """What the cluster knows.

        Raises:
            CorruptMetadataError: the record cannot be read.
        """
        found = await self._store.get(self._key)
        if found is None:
            self._version, self.stored, self._unknown = None, None, b""
            return None
        record = BOOT_CODEC.decode(found.value, self._bookie)
        self._version, self._unknown = found.version, record.unknown
        marker = Marker(record.marker_inode, record.marker_changed_ns)
        self.stored = BootState(record.boot, record.durable_lsn, marker, record.clean, record.owner)
        return self.stored

    async def write(self, own: BootState, found: BootState | None = None) -> None:
        """Write the state of this boot to the cluster. At a start it is the first to show this boot.

        Args:
            own: how far it is.
            found: at a start that is not in limbo: what the directory was. If the record went beyond that since it was
                read, the bookie runs elsewhere.

        Raises:
            IdentityReplacedError: another process has the bookie's identity.
            QuireError: the store does not take it now; trying again may help.
        """
        async for _ in Attempts(f"{self._key} was written"):
            if claim(self.stored, own) is Claim.ANOTHER:
                raise self._replaced(own)
            try:
                await self._cas(own)
            except (AlreadyExistsError, VersionConflictError, KeyMissingError, MetadataUnknownError):
                await self.read()  # the record says which process wrote it
                if found is not None and self.stored != own and older_directory(self.stored, found):
                    raise self._replaced(own) from None
                if self.stored == own:
                    return
            else:
                return

    async def check(self, own: BootState) -> None:
        """Read the record.

        Raises:
            IdentityReplacedError: another process has the bookie's identity.
        """
        if claim(await self.read(), own) is Claim.ANOTHER:
            raise self._replaced(own)

    async def _cas(self, own: BootState) -> None:
        value = BOOT_CODEC.encode(
            StoredBoot(self._bookie, own.boot, own.lsn, *own.marker, own.clean, own.owner, self._unknown)
        )
        if self._version is None:
            self._version = await self._store.create(self._key, value)
        else:
            self._version = await self._store.put(self._key, value, self._version)
        self.stored = own

    def _replaced(self, own: BootState) -> IdentityReplacedError:
        assert self.stored is not None
        return IdentityReplacedError(
            f"bookie {self._bookie} runs elsewhere as boot {self.stored.boot}, and this process is "
            f"boot {own.boot}: either a copy of its directory was started, or this directory is a "
            "copy. Only one of them may run: keep the other one, and do not start this directory "
            "again unless the other one is permanently lost",
            bookie=self._bookie,
        )
