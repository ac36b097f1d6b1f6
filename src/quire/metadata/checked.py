"""Values with a checksum, in the stores whose bytes are Quire's own: SQLite and etcd. Pure.

A sealed value is a magic number, the CRC-32C of key and value, the value, and the magic number backwards. It stands at both
ends so that the error can say which end is missing. The key is under the checksum, so a value that turns up under another key
does not verify.

Source: `docs/formats/metadata.md`, "Checked values"; RFC 3720, appendix B.4: CRC-32C.
"""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from quire.core.errors import CorruptMetadataError
from quire.core.version import FORMAT, UNRELEASED
from quire.metadata.store import Versioned
from quire.wire.layout import Field, FieldUse, Layout

HEAD: Final = b"\0QC1"
TAIL: Final = HEAD[::-1]
_USE: Final = FieldUse("the drivers for SQLite and etcd", "the same")
SEAL_FIELDS: Final = Layout(
    "A checked value, before the value", [Field("magic", "4s", _USE), Field("checksum", "I", _USE)]
)
SEAL_END_FIELDS: Final = Layout("A checked value, after the value", [Field("magic backwards", "4s", _USE)])
SEAL_BYTES: Final = SEAL_FIELDS.size + SEAL_END_FIELDS.size


def another_format(found: object) -> str:
    """What is said of a store whose format is not this program's, after its name."""
    older = isinstance(found, int) and found < FORMAT
    return f"has metadata format {found}, " + (
        f"written by {UNRELEASED}"
        if older
        else f"and this version of Quire knows {FORMAT}: use the version that wrote it"
    )


def _checksum(key: str, value: bytes) -> int:
    return int(
        crc32c(value, crc32c(key.encode() + b"\0"))
    )  # no key has a zero byte: nothing moves between them


def seal(key: str, value: bytes) -> bytes:
    """What a store keeps under a key."""
    return SEAL_FIELDS.struct.pack(HEAD, _checksum(key, value)) + value + TAIL


def open_sealed(key: str, stored: bytes) -> bytes:
    """The value in what is stored under a key.

    Raises:
        CorruptMetadataError: it is damaged, or it was sealed for another key.
    """
    if stored.startswith(HEAD) and stored.endswith(TAIL) and len(stored) >= SEAL_BYTES:
        value = stored[SEAL_FIELDS.size : -len(TAIL)]
        checksum, found = SEAL_FIELDS.struct.unpack_from(stored)[1], _checksum(key, value)
        if found == checksum:
            return value
        raise _damaged(key, f"its checksum is {checksum:08x}, and key and value have {found:08x}")
    missing = "end" if stored.startswith(HEAD) else "beginning"
    raise _damaged(key, f"the marker at the {missing} of its {len(stored)} bytes is missing")


class DamagedValue(Versioned):
    """What a list has in the place of a damaged value: it does not hide the others, and reading it raises the error."""

    __slots__ = ("_what",)
    _what: CorruptMetadataError

    def __init__(self, error: CorruptMetadataError, version: int) -> None:
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "revision", version)
        object.__setattr__(self, "_what", error)

    @property
    def value(self) -> bytes:
        """Nothing.

        Raises:
            CorruptMetadataError: always.
        """
        error = self._what
        raise CorruptMetadataError(error.message, **error.ids)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"DamagedValue(version={self.version})"


def listed(key: str, stored: bytes, version: int) -> Versioned:
    """An item of a list; a damaged one raises when its value is looked at. Its revision is its version in both stores."""
    try:
        return Versioned(open_sealed(key, stored), version, version)
    except CorruptMetadataError as error:
        return DamagedValue(error, version)


def _damaged(key: str, what: str) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"the value of {key} in the metadata store is damaged: {what}; restore it from a backup (the "
        "owner of a registration writes it again when it is restarted), and check the disk of the "
        "store",
        key=key,
    )
