"""Parts of messages that have no fixed size: texts, what is left, and what to say when something is missing.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import struct
from typing import Any

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.wire.entry import Buffer

_U16 = struct.Struct(">H")
ANSWERS = {int(answer): answer for answer in Answer}


def encode_text(value: str) -> bytes:
    """A text: u16 length and UTF-8."""
    encoded = value.encode()
    return _U16.pack(len(encoded)) + encoded


def answer_of(code: int) -> Answer:
    """The response with this number.

    Raises:
        MalformedFrameError: there is none.
    """
    try:
        return ANSWERS[code]
    except KeyError:
        msg = f"answer code {code} is not known here"
        raise MalformedFrameError(msg) from None


class BodyParts:
    """Takes the parts of a message off its bytes, one after another.

    Args:
        buffer: the message.
        what: what it is, for the error when something is missing.
    """

    __slots__ = ("_at", "_view", "_what")

    def __init__(self, buffer: Buffer, what: str) -> None:
        self._view = memoryview(buffer)
        self._at = 0
        self._what = what

    def left(self) -> int:
        """Bytes that have not been taken."""
        return len(self._view) - self._at

    def take(self, size: int, what: str) -> memoryview:
        """The next bytes; `what` they are, for the error.

        Raises:
            MalformedFrameError: the message ends before them.
        """
        if size > self.left():
            msg = f"a {self._what} ends {size - self.left()} bytes too early, in its {what}"
            raise MalformedFrameError(msg)
        self._at += size
        return self._view[self._at - size : self._at]

    def fixed(self, layout: struct.Struct, what: str) -> tuple[Any, ...]:
        """The next fields.

        Raises:
            MalformedFrameError: the message ends within them.
        """
        return layout.unpack(self.take(layout.size, what))

    def text(self, what: str) -> str:
        """The next text.

        Raises:
            MalformedFrameError: the message ends within it, or it is not UTF-8.
        """
        (size,) = self.fixed(_U16, what)
        try:
            return str(self.take(size, what), "utf-8")
        except UnicodeDecodeError as error:
            msg = f"the {what} in a {self._what} is not UTF-8"
            raise MalformedFrameError(msg) from error

    def end(self) -> None:
        """Check that nothing follows.

        Raises:
            MalformedFrameError: something does.
        """
        if self.left():
            msg = f"a {self._what} has {self.left()} bytes behind its end"
            raise MalformedFrameError(msg)
