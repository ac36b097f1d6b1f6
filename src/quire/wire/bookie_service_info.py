"""What a bookie registers about itself, as bytes: its endpoints and its properties.

A Java client connects to the first endpoint with protocol `bookie-rpc` and ignores properties it does not know; ours
are found by the property `quire.native`. Knows nothing of stores and sessions.

Source: BookKeeper source, `BookieServiceInfoFormat` in `DataFormats.proto`; tests/vectors/bookie_service_info.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import BookieId
from quire.wire.layout import FieldUse, NamedValues
from quire.wire.proto.bookie_service_info_pb2 import BookieServiceInfoFormat

BOOKIE_RPC: Final = "bookie-rpc"
NATIVE_PROPERTY: Final = "quire.native"
"""Property: `<port>/<version>` where the bookie speaks the native protocol (docs/formats/native-protocol.md)."""

FEATURES_PROPERTY: Final = "quire.features"
"""Property: what the bookie's program can do, names with a space between them; those of later programs are kept."""

ZONE_PROPERTY: Final = "quire.zone"
"""Property: where the bookie stands, such as a rack or an availability zone; empty while nothing is placed by it."""

DIRECTORY_PROPERTY: Final = "quire.directory"
"""Property: the bookie's directory on its machine, an absolute path; a client there opens segments only below it."""

# As in Java, where the range `:-_` includes `;<=>?@[\]^` as well.
_ID: Final = re.compile(r"[a-zA-Z0-9:-_.\-]+", re.ASCII)
_ADDRESS: Final = re.compile(r"(?P<host>.+):(?P<port>[0-9]{1,5})", re.ASCII)
_FEATURE: Final = re.compile(r"[!-~]{1,64}", re.ASCII)
_PORT_MAX: Final = 65535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address at which a bookie serves one protocol."""

    id: str
    port: int
    host: str
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """A bookie's endpoints in order, and its properties."""

    endpoints: tuple[Endpoint, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()

    @property
    def bookie_rpc(self) -> Endpoint | None:
        """The endpoint that clients connect to: the first with protocol `bookie-rpc`."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == BOOKIE_RPC), None)


def check_bookie_id(bookie_id: str) -> BookieId:
    """The id, if BookKeeper takes it as one.

    Raises:
        MisuseError: it is empty, has a character that ids do not have, or is `readonly` in any case.
    """
    if not _ID.fullmatch(bookie_id) or bookie_id.lower() == "readonly":
        msg = f"{bookie_id!r} cannot be a bookie id: use letters, digits and . - _ : only, and not the word readonly"
        raise MisuseError(msg, bookie=bookie_id)
    return BookieId(bookie_id)


def native_property(port: int, version: int) -> str:
    """The value of `NATIVE_PROPERTY`."""
    return f"{port}/{version}"


def parse_native_property(value: str) -> tuple[int, int] | None:
    """Port and version in a value of `NATIVE_PROPERTY`; None if it is not one (a newer form: use the other protocols)."""
    port, slash, version = value.partition("/")
    if not (slash and port.isdecimal() and version.isdecimal() and 0 < int(port) <= _PORT_MAX):
        return None
    return int(port), int(version)


def features_property(features: Iterable[str]) -> str:
    """The value of `FEATURES_PROPERTY`.

    Raises:
        MisuseError: a name is empty, too long, or has a character that is not printable ASCII, or a space.
    """
    names = sorted(set(features))
    for name in names:
        if not _FEATURE.fullmatch(name):
            msg = f"{name[:80]!r} cannot be the name of a feature: use 1 to 64 printable ASCII characters without spaces"
            raise MisuseError(msg)
    return " ".join(names)


def parse_features_property(value: str) -> frozenset[str]:
    """The features in a value of `FEATURES_PROPERTY`, whether they are known or not."""
    return frozenset(value.split())


def serialize(info: BookieServiceInfo) -> bytes:
    """The whole value that a bookie registers."""
    message = BookieServiceInfoFormat()
    for endpoint in info.endpoints:
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    for key, value in info.properties:
        message.properties.add(key=key, value=value)
    return bytes(message.SerializeToString())


def parse(data: bytes, bookie_id: str) -> BookieServiceInfo:
    """What a registration says.

    Args:
        data: the registered value; empty for a legacy bookie, whose id is its address.
        bookie_id: under which id it is registered.

    Raises:
        CorruptMetadataError: naming the bookie and what is wrong.
    """
    if not data:
        address = _ADDRESS.fullmatch(bookie_id)
        if address is None or not 0 < int(address["port"]) <= _PORT_MAX:
            raise _corrupt(bookie_id, "it is empty, and the id is no address (host:port) to fall back on")
        return BookieServiceInfo((Endpoint(bookie_id, int(address["port"]), address["host"], BOOKIE_RPC),))
    message = BookieServiceInfoFormat()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise _corrupt(bookie_id, f"its {len(data)} bytes do not parse ({error})") from error
    if not message.IsInitialized():
        raise _corrupt(bookie_id, "a field that every endpoint has is missing")
    texts: list[object] = [text for item in message.properties for text in (item.key, item.value)]
    for endpoint in message.endpoints:
        texts += (endpoint.id, endpoint.host, endpoint.protocol, *endpoint.auth, *endpoint.extensions)
        if endpoint.protocol == BOOKIE_RPC and not 0 < endpoint.port <= _PORT_MAX:
            raise _corrupt(bookie_id, f"its port is {endpoint.port}")
    for text in texts:
        if not isinstance(text, str):  # protobuf hands it over as bytes
            raise _corrupt(bookie_id, f"a text in it is not UTF-8: {text!r}")
    return BookieServiceInfo(
        endpoints=tuple(
            Endpoint(e.id, e.port, e.host, e.protocol, tuple(e.auth), tuple(e.extensions))
            for e in message.endpoints
        ),
        properties=tuple((item.key, item.value) for item in message.properties),
    )


def _corrupt(bookie_id: str, what: str) -> CorruptMetadataError:
    msg = (
        f"the registration of bookie {bookie_id} cannot be read: {what}; restart that bookie to register anew"
    )
    return CorruptMetadataError(msg, bookie=bookie_id)


PROPERTIES: Final = NamedValues(
    "Properties of a registration",
    {
        NATIVE_PROPERTY: (
            "where the bookie speaks the native protocol, and its highest version",
            FieldUse("Quire's bookies", "Quire's clients"),
        ),
        FEATURES_PROPERTY: (
            "what the bookie's program can do",
            FieldUse("Quire's bookies", "Quire's clients"),
        ),
        ZONE_PROPERTY: (
            "where the bookie stands; empty, as nothing is placed by it yet",
            FieldUse("Quire's bookies", "Quire's command line"),
        ),
        DIRECTORY_PROPERTY: (
            "the bookie's directory on its machine, for short-circuit reads",
            FieldUse("Quire's bookies", "Quire's clients"),
        ),
    },
)
