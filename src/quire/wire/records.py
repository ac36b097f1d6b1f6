"""What the codecs of records in the metadata store share: parsing, versions, fields of later versions. Knows no record.

Source: `docs/formats/metadata.md`, "Records".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from quire.core.errors import CorruptMetadataError, MisuseError

U64_MAX: Final = 2**64 - 1
U63_MAX: Final = 2**63 - 1

M = TypeVar("M", bound=Message)
T = TypeVar("T")


class Number(NamedTuple):
    """A number of a record: what errors call it, and the largest that it may be; the smallest is 0."""

    name: str
    most: int = U63_MAX


@dataclass(frozen=True)
class RecordCodec(Generic[T]):
    """The codec of a record that is one message, with a field for each attribute of a dataclass, of the same name.

    The dataclass may have `unknown`, the fields of later versions. A record says whose it is, and is refused under
    another's key.

    Attributes:
        kind: the dataclass.
        message: the message's class.
        where: what a record is called in errors, with the attributes that say whose it is: "the boot record of bookie {bookie}".
        owner: those attributes.
        numbers: which attributes are bounded.
        texts: which texts are cut, to so many characters.
        needed: texts that must not be empty, by what errors say of a record that has none.
        version: of the format.
        bytes_max: of one record, with what later versions add.
    """

    kind: type[T]
    message: type[Message]
    where: str
    owner: tuple[str, ...]
    numbers: Mapping[str, Number]
    texts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    needed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    version: int = 1
    bytes_max: int = 4096

    def encode(self, record: T) -> bytes:
        """The record's bytes.

        Raises:
            MisuseError: a number is out of bounds, what is needed is missing, or it is too long.
        """
        values = {name: getattr(record, name) for name in self._names()}
        where = self.where.format(**values)
        for name, number in self.numbers.items():
            check_number(values[name], number.name, where, number.most)
        if missing := self._missing(record):
            raise MisuseError(f"{where}: {missing}")
        for name, length in self.texts.items():
            values[name] = cut(values[name], length)
        message = self.message(format_version=self.version, **values)
        return serialized(message, getattr(record, "unknown", b""), where, self.bytes_max)

    def decode(self, data: bytes, *owner: object) -> T:
        """The record in a value; `owner`: whose it must be, in the order of that attribute.

        Raises:
            CorruptMetadataError: not such a record, of a later version, or of another owner.
        """
        where = self.where.format(**dict(zip(self.owner, owner, strict=True)))
        found: Any = parse(self.message, data, where, self.bytes_max)
        check_version(found.format_version, self.version, where)
        values = {name: getattr(found, name) for name in self._names()}
        if tuple(values[name] for name in self.owner) != owner:
            raise corrupt(where, f"it is {self.where.format(**values)}")
        for name, number in self.numbers.items():
            if not 0 <= values[name] <= number.most:
                raise corrupt(where, f"{number.name} is {values[name]}, and goes from 0 to {number.most}")
        if missing := self._missing(found):
            raise corrupt(where, missing)
        if hasattr(self.kind, "unknown"):
            values["unknown"] = unknown_of(found)
        return self.kind(**values)

    def _names(self) -> list[str]:
        return [each.name for each in self.message.DESCRIPTOR.fields if each.name != "format_version"]

    def _missing(self, record: object) -> str:
        return next((text for name, text in self.needed.items() if not getattr(record, name)), "")


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


def cut(text: str, length: int) -> str:
    """The beginning of a text from outside, such as an error's: it may hold what is no Unicode, which must not stop the record."""
    return text[:length].encode(errors="replace").decode()


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


def _shared(kind: Any, message: Any) -> list[str]:
    """The names of a message's fields that attributes of a dataclass have too."""
    fields = message.DESCRIPTOR.fields_by_name
    return [each.name for each in dataclasses.fields(kind) if each.name in fields]


def message_of(message: type[M], part: Any, /, **others: Any) -> M:
    """The message of a part of a record: its fields are the part's attributes of the same names, and these others.

    It looks names up: what pages have many of is written field by field.
    """
    values = {name: getattr(part, name) for name in _shared(part, message)}
    return with_unknown(message(**(values | others)), part.unknown)


def part_of(kind: type[T], message: Message, /, **others: Any) -> T:
    """What `message_of` made such a message of."""
    values = {name: getattr(message, name) for name in _shared(kind, message)}
    return kind(**(values | others | {"unknown": unknown_of(message)}))


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
