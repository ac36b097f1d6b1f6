"""The readers that wait for a ledger's LAC to rise (long polls), and the ledgers that are followed because of them.

Only the writer knows when its last entry is confirmed, and only it can report that. A bookie therefore marks its
responses to adds of a followed ledger, and the writer sends it the LAC as soon as no later header will. A ledger stays
followed for a moment after a poll was answered, because its reader is about to poll again.

Source: Vanlightly's guide, "Reading from ledgers"; `docs/formats/native-protocol.md`, "Answers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from dataclasses import dataclass, field

SWEEPS = 2
"""A ledger is dropped at the so many-th call of `sweep` after its last poll."""
FOLLOWED_MAX = 65_536


@dataclass(slots=True, eq=False)
class Poll:
    """One reader that waits for the LAC of one ledger."""

    ledger_id: int
    previous_lac: int
    wake: Callable[[], None]
    timer: asyncio.TimerHandle = field(init=False)


class Followers:
    """The readers that wait for LACs at one bookie, and the ledgers that they follow.

    Attributes:
        polls: the polls of each ledger with one.
        followed: the followed ledgers, each with the calls of `sweep` that it has left. Looked at for every add.
    """

    def __init__(self) -> None:
        self.followed: dict[int, int] = {}
        self.polls: dict[int, list[Poll]] = {}

    def polled(self, ledger_id: int) -> None:
        """A reader polls this ledger. It is a hint: where too many are followed, the newest are not."""
        if len(self.followed) < FOLLOWED_MAX or ledger_id in self.followed:
            self.followed[ledger_id] = SWEEPS

    def wait(self, ledger_id: int, previous_lac: int, seconds: float, wake: Callable[[], None]) -> Poll:
        """Call `wake` once: when the LAC has passed `previous_lac`, or the time is over."""
        poll = Poll(ledger_id, previous_lac, wake)
        poll.timer = asyncio.get_running_loop().call_later(seconds, self._time_over, poll)
        self.polls.setdefault(ledger_id, []).append(poll)
        return poll

    def forget(self, poll: Poll) -> None:
        """The waiting client has disconnected."""
        poll.timer.cancel()
        polls = self.polls.get(poll.ledger_id, [])
        if poll in polls:
            self._take(polls, poll)

    @property
    def waited(self) -> Container[int]:
        """The ledgers with a waiting reader, as they are at each look."""
        return self.polls

    def waits(self, ledger_id: int) -> bool:
        """Whether a reader waits for this ledger."""
        return ledger_id in self.polls

    def tell(self, ledger_id: int, lac: int) -> None:
        """Wake those who wait for a LAC below this one."""
        polls = self.polls.pop(ledger_id, None)
        if polls is None:
            return
        still = [poll for poll in polls if poll.previous_lac >= lac]
        if still:
            self.polls[ledger_id] = still
        for poll in polls:
            if poll.previous_lac < lac:
                poll.timer.cancel()
                poll.wake()

    def sweep(self) -> None:
        """Drop ledgers without a recent poll. Called once a second."""
        self.followed = {
            ledger_id: SWEEPS if ledger_id in self.polls else left - 1
            for ledger_id, left in self.followed.items()
            if left > 1 or ledger_id in self.polls
        }

    def _time_over(self, poll: Poll) -> None:
        self._take(self.polls[poll.ledger_id], poll)
        poll.wake()

    def _take(self, polls: list[Poll], poll: Poll) -> None:
        polls.remove(poll)
        if not polls:
            del self.polls[poll.ledger_id]
