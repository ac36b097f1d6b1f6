"""What the codecs of records in the metadata store share: parsing, versions, fields of later versions. Knows no record.

Source: `docs/formats/metadata.md`, "Records".
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from quire.core.errors import CorruptMetadataError, MisuseError

U64_MAX: Final = 2**64 - 1
U63_MAX: Final = 2**63 - 1

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes, where: str, bytes_max: int) -> M:
    """The message in a value.

    Args:
        kind: which message.
        data: the whole value.
        where: what it is, for errors: "the boot record of bookie b:3181".
        bytes_max: a longer one is refused before it is looked at.

    Raises:
        CorruptMetadataError: it is too long, or no such message.
    """
    if len(data) > bytes_max:
        raise corrupt(where, f"it has {len(data)} bytes, more than {bytes_max}")
    message = kind()
    try:
        message.MergeFromString(data)
    except DecodeError as error:
        raise corrupt(where, f"its {len(data)} bytes do not parse ({error})") from error
    return message


def check_version(found: int, known: int, where: str) -> None:
    """Refuse a record of another version.

    Raises:
        CorruptMetadataError: saying which it has and which is known.
    """
    if found != known:
        raise CorruptMetadataError(
            f"{where} has format version {found}, and this program reads {known}: use a newer Quire"
            if found > known
            else f"{where} has format version {found}, which does not exist; restore it from a backup"
        )


def check_number(number: int, name: str, where: str, most: int = U63_MAX) -> int:
    """A number from 0 to `most`, for a field.

    Raises:
        MisuseError: naming the field and the number.
    """
    if not 0 <= number <= most:
        msg = f"{where}: {name} is {number}, and goes from 0 to {most}"
        raise MisuseError(msg)
    return number


def serialized(message: Message, unknown: bytes, where: str, bytes_max: int) -> bytes:
    """The bytes of a record, with the fields of later versions that were read with it.

    Raises:
        MisuseError: they are more than a record may have.
    """
    data = with_unknown(message, unknown).SerializeToString(deterministic=True)
    if len(data) > bytes_max:
        msg = f"{where} would have {len(data)} bytes; it may have {bytes_max}"
        raise MisuseError(msg)
    return data


def with_unknown(message: M, unknown: bytes) -> M:
    """The message with the fields of later versions back in it."""
    if unknown:
        message.MergeFromString(unknown)
    return message


def unknown_of(message: Message) -> bytes:
    """The fields of later versions, as they came; those of the messages in it are theirs."""
    if not len(UnknownFieldSet(message)):
        return b""
    rest: Any = type(message)()
    rest.CopyFrom(message)
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    found: bytes = rest.SerializeToString(deterministic=True)
    return found


def corrupt(where: str, what: str) -> CorruptMetadataError:
    """The error for a record that cannot be one."""
    return CorruptMetadataError(f"{where} cannot be read: {what}; restore it from a backup of the metadata")
