"""Layouts of bytes, declared field by field: codecs are made from the same tables as the pages that describe them.

A field says who writes it and who reads it. Knows no format; each format's own file declares its layouts.

Source: `docs/formats/fields.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple


class FieldUse(NamedTuple):
    """What is said of a field besides its name and its location.

    Attributes:
        writer: which program writes it; "none yet" where it is reserved.
        reader: which program acts on it.
    """

    writer: str
    reader: str


class Field(NamedTuple):
    """One field of a fixed layout: its name, its `struct` code, and its use."""

    name: str
    code: str
    use: FieldUse


class LayoutRow(NamedTuple):
    """One row of the generated tables. `location` is an offset in bytes or a protobuf tag."""

    field: str
    location: str
    use: FieldUse


class Layout:
    """Fields of fixed sizes, one after another, big-endian.

    Args:
        name: what has this layout, as the pages call it.
        fields: in the order of their bytes.

    Attributes:
        struct: packs and unpacks all fields.
        size: bytes of all fields.
    """

    def __init__(self, name: str, fields: Sequence[Field]) -> None:
        self.name = name
        self.fields = tuple(fields)
        self.struct = struct.Struct(">" + "".join(field.code for field in fields))
        self.size = self.struct.size

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each field begins."""
        found: dict[str, int] = {}
        at = 0
        for field in self.fields:
            found[field.name] = at
            at += struct.calcsize(">" + field.code)
        return found

    def rows(self) -> Iterator[LayoutRow]:
        """The rows of this layout's table."""
        for field in self.fields:
            yield LayoutRow(field.name, str(self.offsets[field.name]), field.use)


class Message:
    """A protobuf message whose fields have their uses.

    Args:
        name: what has this layout, as the pages call it.
        descriptor: the message's, as its generated class has it; the library's types of it differ.
        use: of its fields.
        others: of those that have another one.

    Raises:
        ValueError: a use without a field.
    """

    def __init__(self, name: str, descriptor: Any, use: FieldUse, **others: FieldUse) -> None:
        self.name = name
        self._descriptor = descriptor
        self._uses = dict.fromkeys((field.name for field in descriptor.fields), use)
        if unknown := others.keys() - self._uses:
            raise ValueError(f"{descriptor.name} has no fields {sorted(unknown)}")
        self._uses |= others

    def rows(self) -> Iterator[LayoutRow]:
        """The rows of this message's table, by tag."""
        for field in sorted(self._descriptor.fields, key=lambda field: int(field.number)):
            yield LayoutRow(field.name, f"tag {field.number}", self._uses[field.name])


class NamedValues:
    """Numbers or words that a format gives a meaning each: kinds of records, flags, features, keys.

    Args:
        name: what they are, as the pages call them.
        uses: by the number or word.
    """

    def __init__(self, name: str, uses: Mapping[str, tuple[str, FieldUse]]) -> None:
        self.name = name
        self._uses = dict(uses)

    def rows(self) -> Iterator[LayoutRow]:
        """The rows of this list, in its order."""
        for location, (name, use) in self._uses.items():
            yield LayoutRow(name, location, use)


Table = Layout | Message | NamedValues
"""Whatever has rows in the page of fields."""
