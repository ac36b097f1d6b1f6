"""The callers that wait until something is on the disk, and stand-ins for them."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, LedgerFacts
from quire.core.errors import StorageError

FIRST_WORDS_MAX: Final = 128
"""A client with so many requests that wait for records is not served meanwhile: the others' records come first."""


class Asker:
    """A client whose requests may wait for the records of their ledgers.

    Attributes:
        first_words: how many do.
    """

    first_words = 0

    def release(self) -> None:
        """Fewer than `FIRST_WORDS_MAX` wait: go on."""


class LateRefusalError(StorageError):
    """A run that waited for a decision is not taken.

    Args:
        answer: the response to its sender.
        ledger_id: of the run.
    """

    def __init__(self, answer: Answer, ledger_id: int) -> None:
        super().__init__(f"a run of ledger {ledger_id} is refused: {answer.name}", ledger_id=ledger_id)
        self.answer = answer


class Waiter(Protocol):
    """A caller that waits until something is on disk."""

    def stored(self, tag: Any, error: StorageError | None) -> None:
        """What was put with this tag is durable, or failed for ever."""


class _Nobody:
    def stored(self, tag: Any, error: StorageError | None) -> None:
        """Without a waiter: a response that depends on it has a tag of its own."""


class _FactsOf:
    """Tells a ledger's machine what became of facts that no response waits for."""

    def stored(self, tag: Any, error: StorageError | None) -> None:
        machine: BookieLedgerMachine
        facts: LedgerFacts
        machine, facts = tag
        if error is None:
            machine.saved(facts)
        else:
            machine.not_saved(facts)


class _WhenDurable:
    """Runs the tag, a callback, with the error."""

    def stored(self, tag: Any, error: StorageError | None) -> None:
        assert callable(tag)
        tag(error)


NOBODY = _Nobody()
NO_ASKER = Asker()
"""Stands for no client: it is never slowed, however many of its requests wait."""
FACTS_OF = _FactsOf()
WHEN_DURABLE = _WhenDurable()


def settle(done: asyncio.Future[None], outcome: object) -> None:
    """End a wait, with the error if the outcome is one."""
    if done.done():
        return
    if isinstance(outcome, BaseException):
        done.set_exception(outcome)
    else:
        done.set_result(None)
