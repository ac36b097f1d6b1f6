"""The bodies of INFO: JSON objects, both ways; what they say is the bookie's business.

Source: `docs/formats/native-protocol.md`, INFO.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, NamedTuple

from quire.core.errors import MalformedFrameError
from quire.core.ids import ID_MAX, NO_ENTRY
from quire.wire.entry import Buffer


class SpaceTask(StrEnum):
    """What a bookie does before it says what holds its space: `measure` alone, or a pass of its collector first.

    `compact`: that pass compacts its segments as on a full disk, however much of the disk is free.
    """

    MEASURE = "measure"
    COLLECT = "collect"
    COMPACT = "compact"


class InfoQuestion(NamedTuple):
    """What an INFO of a bookie asks for besides what a bookie says each time; one of these, or neither.

    Attributes:
        orphans_after: ledgers without a record, those above this id.
        space: what holds its space, after this task.
    """

    orphans_after: int | None = None
    space: SpaceTask | None = None


NO_QUESTION = InfoQuestion()


def encode_info_question(question: InfoQuestion) -> bytes:
    """The body of an INFO of a bookie; without a question it is empty."""
    asked = {name: value for name, value in question._asdict().items() if value is not None}
    return encode_info(asked) if asked else b""


def decode_info_question(body: Buffer) -> InfoQuestion:
    """What an INFO of a bookie asks for.

    Raises:
        MalformedFrameError: it is neither empty nor such a question.
    """
    if not len(body):
        return NO_QUESTION
    asked = decode_info(body)
    after, space = asked.get("orphans_after"), asked.get("space")
    if space is not None:
        if after is not None or space not in list(SpaceTask):
            msg = f"an INFO asks for the space after {space!r}"
            raise MalformedFrameError(msg)
        return InfoQuestion(space=SpaceTask(space))
    if not isinstance(after, int) or not NO_ENTRY <= after <= ID_MAX:
        msg = f"an INFO asks for ledgers after {after!r}"
        raise MalformedFrameError(msg)
    return InfoQuestion(after)


def encode_info(info: dict[str, Any]) -> bytes:
    """The body of a response to INFO."""
    return json.dumps(info, separators=(",", ":"), sort_keys=True).encode()


def decode_info(body: Buffer) -> dict[str, Any]:
    """The object of a response to INFO.

    Raises:
        MalformedFrameError: it is no JSON object.
    """
    try:
        info = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        msg = "the body of INFO is not JSON"
        raise MalformedFrameError(msg) from error
    if not isinstance(info, dict):
        msg = "the body of INFO is not an object"
        raise MalformedFrameError(msg)
    return info
