"""The format of a cluster's store in etcd, which stands in the key `instance` after the cluster's id.

`<id> format 2, needs Quire 0.2 or newer; <CRC-32C of what is before>`: a sentence, for people who meet it.

Source: `docs/formats/metadata.md`, "Checked values".
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from quire.core.errors import CorruptMetadataError
from quire.core.version import FORMAT
from quire.metadata.checked import another_format, open_sealed
from quire.metadata.etcd.keys import KeyLayout

NUMBERS_KEY: Final = "/numbers"
"""Under this name the last number of a sequential registration is sealed; no key of a store begins with a slash."""
_INSTANCE: Final = re.compile(
    r"(?P<id>[0-9a-f-]{36})(?: format (?P<format>[0-9]{1,9}), needs .{1,80})?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Instance:
    """The content of the key `instance`: the cluster's id, and the format of its store."""

    instance_id: str
    format: int = FORMAT

    @classmethod
    def new(cls) -> Instance:
        """Of a cluster that is about to be made."""
        return cls(str(uuid.uuid4()))

    def serialize(self) -> bytes:
        """The value of the key."""
        text = f"{self.instance_id} format {self.format}, needs Quire 0.2 or newer; ".encode()
        return text + b"%08x" % crc32c(text)

    @classmethod
    def parse(cls, value: bytes, layout: KeyLayout, hosts: str) -> Instance:
        """What the value of the key says.

        Args:
            value: what is stored.
            layout: where, for the error.
            hosts: at which servers, for the error.

        Raises:
            CorruptMetadataError: it is damaged, or has a format that is not known.
        """
        key, place = layout.instance.decode(), f"the cluster at etcd {hosts}"
        found = _INSTANCE.fullmatch(value.decode(errors="replace"))
        known = _parsed(found)
        if known is not None and known.format != FORMAT:
            raise CorruptMetadataError(f"{place} (key {key}) {another_format(known.format)}", key=key)
        if known is None or known.serialize() != value:
            raise CorruptMetadataError(
                f"the key {key} at etcd {hosts} is damaged, or not Quire's: {value[:80]!r}", key=key
            )
        return known


def _parsed(found: re.Match[str] | None) -> Instance | None:
    if found is None:
        return None
    try:
        instance_id = str(uuid.UUID(found["id"]))
    except ValueError:
        return None
    return Instance(instance_id, int(found["format"] or 1))


def number_in(stored: bytes) -> int:
    """The last number of a sequential registration, in what is stored of it.

    Raises:
        CorruptMetadataError: it is damaged.
    """
    value = open_sealed(NUMBERS_KEY, stored)
    if not value.isdigit():
        raise CorruptMetadataError(
            f"the last number of a sequential registration (key numbers) is damaged: {value[:80]!r}; write a number"
            " there that is above every one in use",
            key="numbers",
        )
    return int(value)
