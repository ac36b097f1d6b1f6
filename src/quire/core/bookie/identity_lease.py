"""When a bookie must hold its responses: another process may have its identity.

A bookie that was stopped for longer than its session, or whose registration is deleted, may have been replaced by a copy
of itself. What it then acknowledged or denied, the other would not know of. So it *holds* adds, fences and negative
responses until it is registered again under its own boot number, and ends when another boot has the identity. Entries
that it has it may show: they are what they were.

A metadata store that is down is no reason to hold: no other process can take the identity over either.

Source: `docs/protocol/bookie.md`, "Holding"; `docs/decisions/015-who-a-directory-is.md`.
"""

from __future__ import annotations

from quire.core.bookie.rules import RULES, BookieRules

STARTING = "the bookie is not registered yet"


class IdentityLeaseMachine:
    """Whether one bookie holds. Times are milliseconds of a clock that goes on while the machine sleeps.

    Args:
        pause_ms: two looks that lie further apart are a pause in which the session may have ended.
        now_ms: when it begins.
        rules: the judgements; production passes the one true set.

    Attributes:
        holding: adds, fences and negative responses wait.
        why: the last reason to hold.
        round: how often there was a reason; a confirmation that was begun before the last one counts for nothing.
        replaced: the identity is another's for good: why; empty until then.
    """

    def __init__(self, pause_ms: int, now_ms: int, rules: BookieRules = RULES) -> None:
        self._pause_ms = pause_ms
        self._looked_ms = now_ms
        self._rules = rules
        self.holding = True
        self.why = STARTING
        self.round = 0
        self.replaced = ""

    def look(self, now_ms: int) -> bool:
        """Before responses leave, and now and then: whether it holds.

        Args:
            now_ms: the time.
        """
        apart_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        if self._rules.holds_after_pause(apart_ms, self._pause_ms):
            self._hold(f"this process did not run for {apart_ms} ms")
        return self.holding

    def registration_lost(self) -> None:
        """The store answered that the registration is not there, or is another's."""
        self._hold("the metadata store has no registration of this bookie")

    def confirmed(self, begun_in: int) -> bool:
        """It is registered, and the record of its boots shows its own boot.

        Args:
            begun_in: `round` before the store was asked.

        Returns:
            Whether that ends the holding; False if there was a reason to hold since.
        """
        if begun_in != self.round or self.replaced:
            return False
        self.holding = False
        return True

    def replaced_by(self, why: str) -> None:
        """Another boot has the identity: it holds for ever, and is to be stopped."""
        self._hold(why)
        self.replaced = why

    def _hold(self, why: str) -> None:
        self.holding = True
        self.why = why
        self.round += 1
