"""The hello of the native protocol and its response: which version is spoken, and what each side can do.

A version says how bodies are laid out; a feature says what a program does. Bits that a program does not know are kept
and mean nothing to it.

Source: `docs/formats/native-protocol.md`, "Hello".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ledger.terms import FENCING_FEATURE, TERMS_FEATURE
from quire.core.version import FORMAT, UNRELEASED
from quire.wire.entry import Buffer
from quire.wire.layout import Field, FieldUse, Layout, NamedValues
from quire.wire.native import BodyParts, answer_of, encode_text

MAGIC = b"\xd1QUIRE\r\n"
VERSION_MIN: Final = FORMAT
"""The lowest version that is spoken here."""
VERSION: Final = FORMAT
"""The highest."""
HELLO_BYTES_MAX = 64 * 1024

START_TLS = 1
"""Feature: in a hello, "TLS first, then my hello"; in its response, "yes, begin". Nothing else of that hello counts."""
AUTHENTICATE = 2
"""Feature of a response: nothing is served before AUTH requests have shown who the client is."""
COLOCATED = 4
"""Feature of a response: both run on one machine, so a READ may have the flag `LOCATIONS`."""
LOW_PRIORITY = 8
"""Feature: adds with the flag `LOW_PRIORITY` stop before the space that is kept for fences and recovery."""
TERMS = 16
"""Feature: requests and runs may have terms above 0. A peer that does not announce it refuses them."""
TRUNCATE = 32
"""Feature of streams whose entries have ids without terms: TRUNCATE is acted on, and a read names no origin term."""
LACS = 64
"""Feature: one WRITE_LACS carries the LACs of many ledgers."""
BUNDLES = 128
"""Feature: one ADD_BUNDLE carries runs of many ledgers."""
OFFERED: Final = LOW_PRIORITY | TERMS | TRUNCATE | LACS | BUNDLES
"""What this program does, as a client and as a bookie."""
_FEATURE_NAMES: Final = {
    LOW_PRIORITY: "background",
    TERMS: TERMS_FEATURE,
    TRUNCATE: FENCING_FEATURE,
    LACS: "lacs",
    BUNDLES: "bundles",
}

_EITHER = FieldUse(writer="client, bookie", reader="client, bookie")
FEATURES = NamedValues(
    "Features of a hello",
    {
        str(START_TLS): ("START_TLS", _EITHER),
        str(AUTHENTICATE): ("AUTHENTICATE", FieldUse("bookie", "client")),
        str(COLOCATED): ("COLOCATED", FieldUse("bookie", "client")),
        str(LOW_PRIORITY): ("LOW_PRIORITY", _EITHER),
        str(TERMS): ("TERMS", _EITHER),
        str(TRUNCATE): ("TRUNCATE", _EITHER),
        str(LACS): ("LACS", _EITHER),
        str(BUNDLES): ("BUNDLES", _EITHER),
    },
)
_SAID = FieldUse("client", "bookie")
HELLO_FIELDS = Layout(
    "Hello",
    [
        Field("lowest version", "H", _SAID),
        Field("highest version", "H", _SAID),
        Field("features", "Q", _SAID),
    ],
)
HELLO_TEXTS = NamedValues(
    "Hello, after its fixed fields",
    {
        "1st text": ("cluster instance", _SAID),
        "2nd text": ("bookie id that is meant", _SAID),
        "3rd text": ("auth scheme", _SAID),
        "blob": ("auth", _SAID),
    },
)
_ANSWERED = FieldUse("bookie", "client")
HELLO_ANSWER_FIELDS = Layout(
    "Answer to a hello",
    [
        Field("version", "H", _ANSWERED),
        Field("features", "Q", _ANSWERED),
        Field("answer code", "H", _ANSWERED),
    ],
)
HELLO_ANSWER_TEXTS = NamedValues(
    "Answer to a hello, after its fixed fields",
    {
        "1st text": ("bookie id", _ANSWERED),
        "2nd text": ("cluster instance", _ANSWERED),
        "3rd text": ("message", _ANSWERED),
        "u64": ("boot number", FieldUse("bookie", "client")),
    },
)
_HELLO = HELLO_FIELDS.struct
_HELLO_ANSWER = HELLO_ANSWER_FIELDS.struct
_SHOWN_CHARACTERS: Final = 256
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first words: which versions it speaks, what it can do, and which bookie of which cluster it means."""

    cluster_instance: str
    bookie_id: str
    version_min: int = VERSION_MIN
    version_max: int = VERSION
    features: int = 0
    auth_scheme: str = ""
    auth: bytes = b""


@dataclass(frozen=True, slots=True)
class HelloAnswer:
    """The bookie's: the version both will speak, or 0 and the reason. `boot`: how often its directory was started."""

    version: int
    answer: Answer
    bookie_id: str
    cluster_instance: str
    message: str = ""
    features: int = 0
    boot: int = 0


def version_with(hello: Hello) -> int:
    """The version to speak with this client; 0 if there is none that both know."""
    version = min(VERSION, hello.version_max)
    return version if version >= max(VERSION_MIN, hello.version_min) else 0


def refusal(hello: Hello) -> str:
    """Why no version can be spoken with a client, for it."""
    older = f", as spoken by {UNRELEASED}" if hello.version_max < VERSION_MIN else ""
    return (
        f"this bookie speaks versions {VERSION_MIN}..{VERSION} of the native protocol, not"
        f" {hello.version_min}..{hello.version_max}{older}"
    )


def shown(name: str) -> str:
    """A name out of a hello, for the response and the log: the client may have sent anything."""
    is_one = name.isprintable() and len(name) <= _SHOWN_CHARACTERS
    return name if is_one else f"{name[:_SHOWN_CHARACTERS]!r}…"


def feature_names(features: int) -> list[str]:
    """The words by which a registration says what a bookie can do."""
    return [name for bit, name in _FEATURE_NAMES.items() if features & bit]


def encode_hello(hello: Hello) -> bytes:
    """The bytes that open a connection."""
    return _framed(
        _HELLO.pack(hello.version_min, hello.version_max, hello.features)
        + encode_text(hello.cluster_instance)
        + encode_text(hello.bookie_id)
        + encode_text(hello.auth_scheme)
        + _U32.pack(len(hello.auth))
        + hello.auth
    )


def decode_hello(body: Buffer) -> Hello:
    """A hello from the bytes between its length and its checksum; what a later version adds after it is left alone.

    Raises:
        MalformedFrameError: it is cut or not text.
    """
    parts = BodyParts(body, "hello")
    low, high, features = parts.fixed(_HELLO, "versions and features")
    cluster, bookie = parts.text("cluster instance"), parts.text("bookie id")
    scheme = parts.text("auth scheme")
    (size,) = parts.fixed(_U32, "size of auth")
    return Hello(cluster, bookie, low, high, features, scheme, bytes(parts.take(size, "auth")))


def encode_hello_answer(answer: HelloAnswer) -> bytes:
    """The bytes that answer a hello; a refusal is the same in every version, so that each program can read it."""
    return _framed(
        _HELLO_ANSWER.pack(answer.version, answer.features, answer.answer)
        + encode_text(answer.bookie_id)
        + encode_text(answer.cluster_instance)
        + encode_text(answer.message)
        + (_U64.pack(answer.boot) if answer.version else b"")
    )


def decode_hello_answer(body: Buffer) -> HelloAnswer:
    """A hello's answer from the bytes between its length and its checksum.

    Raises:
        MalformedFrameError: it is cut, not text, or carries a code that is not known.
    """
    parts = BodyParts(body, "answer to a hello")
    version, features, code = parts.fixed(_HELLO_ANSWER, "version, features and answer code")
    bookie, cluster = parts.text("bookie id"), parts.text("cluster instance")
    message = parts.text("message")
    boot = parts.fixed(_U64, "boot number")[0] if version else 0
    return HelloAnswer(version, answer_of(code), bookie, cluster, message, features, boot)


def split_hello(buffer: Buffer) -> tuple[memoryview, int] | None:
    """The hello (or its response) at the start of a buffer.

    Returns:
        (the bytes between length and checksum, bytes used), or None when more bytes are needed.

    Raises:
        MalformedFrameError: another magic, too long, or a wrong checksum.
    """
    view = memoryview(buffer)
    head = len(MAGIC) + 4
    if bytes(view[: len(MAGIC)]) != MAGIC[: len(view)]:
        msg = f"not the native protocol: the connection starts with {bytes(view[:8]).hex()}"
        raise MalformedFrameError(msg)
    if len(view) < head:
        return None
    (size,) = _U32.unpack_from(view, len(MAGIC))
    if size > HELLO_BYTES_MAX:
        msg = f"a hello of {size} bytes is longer than {HELLO_BYTES_MAX}"
        raise MalformedFrameError(msg)
    if len(view) < head + size + 4:
        return None
    body = view[head : head + size]
    if _U32.unpack_from(view, head + size)[0] != crc32c(body):
        msg = "the checksum of a hello differs"
        raise MalformedFrameError(msg)
    return body, head + size + 4


def _framed(body: bytes) -> bytes:
    return MAGIC + _U32.pack(len(body)) + body + _U32.pack(crc32c(body))
