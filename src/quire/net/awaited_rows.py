"""The rows of one bundle that one bookie has not answered yet: responses may cover any part of them, in any order.

Source: `docs/formats/native-protocol.md`, "Bundles".
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import NO_ENTRY
from quire.wire.bundles import BundlePart, decode_parts
from quire.wire.native import AnswerFrame, Kind


class AwaitedRows:
    """Stands for a bundle among the requests that are outstanding on one connection.

    Attributes:
        left: how many rows are not answered.

    Args:
        count: the bundle's rows.
    """

    __slots__ = ("_awaited", "left")

    ledger = None

    def __init__(self, count: int) -> None:
        self._awaited = bytearray(b"\1") * count
        self.left = count

    def answered(self, frame: AnswerFrame) -> Sequence[BundlePart]:
        """The parts of a response, whose rows are not awaited from then on. One without parts is for all that are left.

        Raises:
            MalformedFrameError: it answers what was not asked, or a row again; all rows stay as they were.
        """
        if frame.kind != Kind.ADD_BUNDLE:
            msg = f"a response of kind {frame.kind} to a bundle"
            raise MalformedFrameError(msg)
        if frame.answer is not Answer.OK:
            return self.refused(frame.answer)
        parts, awaited, left = decode_parts(frame.body, len(self._awaited)), self._awaited[:], self.left
        for first, rows, _, _ in parts:
            if awaited.find(0, first, first + rows) >= 0:
                msg = f"a response to a bundle answers a row of {first}..{first + rows - 1} a second time"
                raise MalformedFrameError(msg)
            awaited[first : first + rows] = bytes(rows)
            left -= rows
        self._awaited, self.left = awaited, left
        return parts

    def refused(self, answer: Answer, lac: int = NO_ENTRY) -> Sequence[BundlePart]:  # noqa: ARG002 - a part has none
        """One answer for all rows that are left."""
        awaited, parts, first = self._awaited, list[BundlePart](), 0
        while (first := awaited.find(1, first)) >= 0:
            end = awaited.find(0, first)
            end = len(awaited) if end < 0 else end
            parts.append(BundlePart(first, end - first, answer))
            first = end
        self._awaited, self.left = bytearray(len(awaited)), 0
        return parts
