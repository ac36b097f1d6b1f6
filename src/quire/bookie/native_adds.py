"""Adds of our own protocol that came together: stored together, and answered together.

Each is judged and stored in one step, in the order in which they came. All other requests see the adds before them stored.

Source: `docs/formats/native-protocol.md`, ADD.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from quire.bookie.client_connection import Serving
from quire.bookie.waiters import FIRST_WORDS_MAX, Waiter
from quire.core.answers import Answer
from quire.wire import native
from quire.wire.plain_adds import AddRequest, PlainAdd, plain_add
from quire.wire.run import SCHEME_PLAIN, RunView


def has_terms(run: RunView) -> bool:
    """Whether a run is of a term, or its entries name theirs: this program does not know terms, and stores none.

    It refuses the terms of requests as well: to ignore one would be to take an old writer for the new one.
    """
    return run.origin_term > 0 or run.scheme != SCHEME_PLAIN


class AddingConnection(Waiter, Protocol):
    """A connection, as its adds see it: `Connection`."""

    first_words: int
    added: bool

    def serve(self, frame: memoryview) -> None:
        """Serve one request."""

    def answer(self, request: AddRequest, answer: Answer) -> None:
        """Answer a request."""

    def will_answer(self, size: int) -> None:
        """Responses to stored adds, so many bytes, are encoded when they leave."""

    def answers_encoded(self, answers: bytes) -> None:
        """These are those responses."""


class NativeAdds:
    """The plain adds of one connection.

    Args:
        server: the bookie.
        connection: whose they are.
    """

    __slots__ = ("_connection", "_server", "_stored")

    def __init__(self, server: Serving, connection: AddingConnection) -> None:
        self._server = server
        self._connection = connection
        self._stored: list[PlainAdd] = []

    def serve(self, requests: deque[memoryview | bytes], count_max: int) -> int:
        """Serve the next requests, as long as they are short frames that look like adds.

        Args:
            requests: what waits; those are the items that are `bytes`.
            count_max: how many to serve at most.

        Returns:
            How many were served.
        """
        server, connection, count = self._server, self._connection, 0
        add_run, admitted, holds = server.ledgers.add, server.admitted, server.vigil.holding
        while count < count_max and requests and isinstance(frame := requests[0], bytes):
            requests.popleft()
            count += 1
            add = None if holds else plain_add(frame)
            if add is None:
                connection.serve(memoryview(frame))
            elif (answer := add_run(add, add, connection, add)) is Answer.OK:
                connection.added = True
                admitted(len(add.body))
            else:
                connection.answer(add, answer)
            if server.holding or connection.first_words >= FIRST_WORDS_MAX:
                break
        return count

    def stored(self, add: PlainAdd) -> None:
        """An add is durable: it is answered with the others of this turn."""
        self._stored.append(add)
        self._connection.will_answer(native.ANSWER_BYTES)

    def answer(self) -> None:
        """Encode the responses to what is stored: before another response, or when they leave."""
        if not self._stored:
            return
        stored, self._stored = self._stored, []
        server = self._server
        server.settled(sum(len(add.body) for add in stored))
        followed = server.ledgers.followers.followed
        said = (
            (add.number, add.ledger_id, native.FOLLOWED if add.ledger_id in followed else 0) for add in stored
        )
        self._connection.answers_encoded(native.encode_added(said, server.storage.durable_lsn))
