"""The ZooKeeper requests that kazoo has no classes for, in the form that its connection sends.

| request | type | body | answer |
| --- | --- | --- | --- |
| MultiRead | 22 | for each read a header `type i32, done u8, error i32`, path, watch u8; a header with done=1 | for each a header and data or children, or the header -1 and an error |
| AddWatch | 106 | path, mode i32 (1: persistent and recursive) | nothing of interest |
| RemoveWatches | 18 | path, kind i32 (3: any) | nothing |

They need ZooKeeper 3.6 or later.

Source: ZooKeeper source, `zookeeper.jute`, `ZooDefs.OpCode`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kazoo.exceptions import EXCEPTIONS, KazooException
from kazoo.protocol.serialization import GetChildren, GetData, MultiHeader, write_string
from kazoo.protocol.states import ZnodeStat

RECURSIVE: Final = 1
ANY: Final = 3
_INT: Final = struct.Struct("!i")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_NO_NODE: Final = -101
_CODES: Final = range(-150, 0)


class ServerError(KazooException):  # type: ignore[misc]
    """A response with an error that kazoo does not know, for example that a quota is exceeded."""


def know_all_errors() -> None:
    """Give every error code of the server an exception: one that kazoo has none for would end its thread."""
    for code in _CODES:
        if code not in EXCEPTIONS:
            EXCEPTIONS[code] = type(f"ServerError{-code}", (ServerError,), {"code": code})


class Node(NamedTuple):
    """A znode's data and its stat."""

    data: bytes
    stat: ZnodeStat


@dataclass(frozen=True, slots=True)
class MultiRead:
    """Several reads of one moment.

    Answer: a pair of lists, for each folder its children and for each node its `Node`; None where there is none.

    Args:
        folders: whose children to list.
        nodes: whose data to get.
    """

    folders: Sequence[str]
    nodes: Sequence[str]
    type = 22

    def serialize(self) -> bytes:
        """The request's body."""
        body = bytearray()
        for kind, paths in ((GetChildren.type, self.folders), (GetData.type, self.nodes)):
            for path in paths:
                body += MultiHeader(kind, False, -1).serialize() + write_string(path) + b"\0"
        return bytes(body + MultiHeader(-1, True, -1).serialize())

    def deserialize(self, data: bytes, offset: int) -> tuple[list[list[str] | None], list[Node | None]]:
        """The response.

        Raises:
            KazooException: a read failed for another reason than that there is no such znode.
        """
        found: list[object] = []
        while True:
            header, offset = MultiHeader.deserialize(data, offset)
            if header.done:
                break
            if header.type == GetChildren.type:
                (count,) = _INT.unpack_from(data, offset)
                offset += _INT.size
                children = []
                for _ in range(max(count, 0)):
                    (size,) = _INT.unpack_from(data, offset)
                    offset += _INT.size
                    children.append(data[offset : offset + size].decode())
                    offset += size
                found.append(children)
            elif header.type == GetData.type:
                (size,) = _INT.unpack_from(data, offset)
                offset += _INT.size
                value = data[offset : offset + max(size, 0)]
                offset += max(size, 0)
                found.append(Node(value, ZnodeStat._make(_STAT.unpack_from(data, offset))))
                offset += _STAT.size
            else:
                (code,) = _INT.unpack_from(data, offset)
                offset += _INT.size
                if code != _NO_NODE:
                    raise EXCEPTIONS[code]
                found.append(None)
        split = len(self.folders)
        return found[:split], found[split:]  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class AddWatch:
    """Report every change of a znode and of what is below it, until the connection ends."""

    path: str
    type = 106

    def serialize(self) -> bytes:
        """The request's body."""
        return bytes(write_string(self.path)) + _INT.pack(RECURSIVE)

    def deserialize(self, _data: bytes, _offset: int) -> bool:
        """Nothing of interest."""
        return True


@dataclass(frozen=True, slots=True)
class RemoveWatches:
    """End the watches on a znode."""

    path: str
    type = 18

    def serialize(self) -> bytes:
        """The request's body."""
        return bytes(write_string(self.path)) + _INT.pack(ANY)

    def deserialize(self, _data: bytes, _offset: int) -> bool:
        """Nothing."""
        return True
