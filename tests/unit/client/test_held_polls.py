"""A tail's long polls: a bookie that does not hold its poll is asked again, after a pause, and delays no other."""

from __future__ import annotations

import asyncio

from quire.client.reading.held_polls import HeldPolls
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.wire.responses import ReadReply

B = [BookieId(f"b{number}") for number in range(2)]
WAIT_MS = 20


def says(lac: int, answer: Answer = Answer.OK) -> ReadReply:
    return ReadReply(answer, lac=lac)


async def test_who_answers_at_once_is_asked_again_while_another_waits() -> None:
    answers = [says(3), says(-1, Answer.TIMED_OUT), says(5)]

    async def poll(bookie: BookieId) -> ReadReply:
        if bookie == B[1]:
            await asyncio.Event().wait()  # it hangs, and delays nothing
        return answers.pop(0)

    assert await HeldPolls(poll, WAIT_MS).first_news(B, 5) == (B[0], says(5))


async def test_where_no_bookie_waits_the_caller_looks_elsewhere() -> None:
    async def poll(_bookie: BookieId) -> ReadReply:
        return says(3)

    assert await HeldPolls(poll, WAIT_MS).first_news(B, 5) is None
