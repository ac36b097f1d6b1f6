"""When a bookie's lease on its identity is pending: another process may have the identity.

A bookie that was stopped for longer than its session, or whose registration is deleted, may have been replaced by a copy
of itself. What it then acknowledged or denied, the other would not know of. So its *identity lease* is pending, and it defers
adds, fences and negative responses, until it is registered again under its own boot number; the bookie ends when another boot
has the identity. Entries that it has it may show: they are what they were.

A metadata store that is down makes no lease pending: no other process can take the identity over either.

Source: `docs/protocol/bookie.md`, "The identity lease"; `docs/decisions/015-who-a-directory-is.md`.
"""

from __future__ import annotations

from quire.core.bookie.rules import RULES, BookieRules

STARTING = "the bookie is not registered yet"


class IdentityLeaseMachine:
    """Whether one bookie's identity lease is pending. Times are milliseconds of a clock that goes on while the machine sleeps.

    Args:
        pause_ms: two looks that lie further apart are a pause in which the session may have ended.
        now_ms: when it begins.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Attributes:
        pending: adds, fences and negative responses wait.
        why: the last reason why it was.
        round: how often there was a reason; a confirmation that was begun before the last one counts for nothing.
        replaced: the identity is another's for good: why; empty until then.
    """

    def __init__(self, pause_ms: int, now_ms: int, rules: BookieRules = RULES) -> None:
        self._pause_ms = pause_ms
        self._looked_ms = now_ms
        self._rules = rules
        self.pending = True
        self.why = STARTING
        self.round = 0
        self.replaced = ""

    def look(self, now_ms: int) -> bool:
        """Before responses leave, and now and then: whether it is pending.

        Args:
            now_ms: the time.
        """
        apart_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        if self._rules.pending_after_pause(apart_ms, self._pause_ms):
            self._suspend(f"this process did not run for {apart_ms} ms")
        return self.pending

    def registration_lost(self) -> None:
        """The store answered that the registration is not there, or is another's."""
        self._suspend("the metadata store has no registration of this bookie")

    def confirmed(self, begun_in: int) -> bool:
        """It is registered, and the record of its boots shows its own boot.

        Args:
            begun_in: `round` before the store was asked.

        Returns:
            Whether it is pending no more; False if there was another reason since.
        """
        if begun_in != self.round or self.replaced:
            return False
        self.pending = False
        return True

    def replaced_by(self, why: str) -> None:
        """Another boot has the identity: it is pending for ever, and the bookie is to be stopped."""
        self._suspend(why)
        self.replaced = why

    def _suspend(self, why: str) -> None:
        self.pending = True
        self.why = why
        self.round += 1
