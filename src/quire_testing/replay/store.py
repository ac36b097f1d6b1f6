"""A client's metadata store whose questions about ledgers land, and are answered, when the schedule says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.errors import MetadataUnknownError
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.metadata.keys import LEDGERS as PREFIX
from quire.metadata.keys import STREAMS
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.store import Op, Put, VersionConflictError, Versioned
from quire.wire import ledger_metadata
from quire.wire.stream_metadata import decode_stream


@dataclass(slots=True, eq=False)
class Question:
    """One question: a compare-and-swap (`op`) or a read of a key.

    Attributes:
        landed: the store has decided it: the versions, or the error that says why not.
        heeded: a client still waits for the response.
    """

    key: str
    op: Put | None
    future: asyncio.Future[Any]
    landed: Any = None
    heeded: bool = True

    @property
    def record(self) -> LedgerMetadata:
        """What the compare-and-swap would store."""
        assert self.op is not None
        if self.key.startswith(STREAMS):
            return decode_stream(self.op.value, int(self.key.removeprefix(STREAMS)))
        return ledger_metadata.parse(self.op.value, int(self.key.removeprefix(PREFIX)))


class LookupStore(MemoryStore):
    """A bookie's client of a space: its reads of records land, and are answered, when the schedule says so.

    Attributes:
        questions: those that wait, oldest first; `heeded` is False once the store has read what they ask.
    """

    def __init__(self, shared: MemorySpace) -> None:
        super().__init__(shared)
        self.questions: list[Question] = []

    async def get(self, key: str) -> Versioned | None:
        """A read, answered with what was there when it landed."""
        if not key.startswith(PREFIX):
            return await super().get(key)
        loop = asyncio.get_running_loop()
        question = Question(key, None, loop.create_future(), landed=loop.create_future())
        self.questions.append(question)
        await question.future
        found = await super().get(key)
        await question.landed
        return found

    def land(self, question: Question) -> None:
        """The read reaches the store."""
        question.heeded = False
        question.future.set_result(None)

    def answer(self, question: Question) -> None:
        """What it read reaches the bookie."""
        self.questions.remove(question)
        question.landed.set_result(None)


class ScriptedStore(MemoryStore):
    """One client of a space.

    Args:
        shared: the space.
        prefix: of the keys that questions are about.
        blind: a close is taken whatever the version, for the mutant X16 (docs/counterexamples.md).

    Attributes:
        scripted: questions wait; before that they are answered at once.
        questions: those that wait, oldest first.
        silent: the store says of every further question that it does not know.
    """

    def __init__(self, shared: MemorySpace, *, prefix: str = PREFIX, blind: bool = False) -> None:
        super().__init__(shared)
        self._prefix = prefix
        self._blind = blind
        self.scripted = False
        self.silent = False
        self.questions: list[Question] = []

    async def get(self, key: str) -> Versioned | None:
        """A read, answered with what is there when the schedule answers it."""
        if not self.scripted or not key.startswith(self._prefix):
            return await super().get(key)
        await self._wait(Question(key, None, asyncio.get_running_loop().create_future()))
        return await super().get(key)

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        """A compare-and-swap, answered once it has landed."""
        op = ops[0]
        if not self.scripted or not isinstance(op, Put):
            return await super().multi(ops)
        if self.silent:
            msg = "the schedule keeps the store silent"
            raise MetadataUnknownError(msg)
        question = Question(op.key, op, asyncio.get_running_loop().create_future())
        await self._wait(question)
        if isinstance(question.landed, Exception):
            raise question.landed
        return question.landed  # type: ignore[no-any-return]

    async def _wait(self, question: Question) -> None:
        self.questions.append(question)
        try:
            await question.future
        except BaseException:
            question.heeded = False
            raise

    def land(self, question: Question) -> None:
        """The compare-and-swap reaches the store."""
        op = question.op
        assert op is not None
        try:
            question.landed = self._space.apply((op,))
        except VersionConflictError as error:
            question.landed = error
            row = self._space.rows.get(op.key)
            if self._blind and row is not None and question.record.state is LedgerState.CLOSED:
                question.landed = self._space.apply((Put(op.key, op.value, row.version),))
        if not question.heeded:
            self.questions.remove(question)

    def answer(self, question: Question) -> None:
        """The response reaches the client."""
        self.questions.remove(question)
        question.future.set_result(None)

    def lose(self, question: Question) -> None:
        """The response never comes: the caller gets "unknown". A compare-and-swap may still land."""
        question.heeded = False
        if question.landed is not None or question.op is None:
            self.questions.remove(question)
        question.future.set_exception(MetadataUnknownError("the answer is lost"))
