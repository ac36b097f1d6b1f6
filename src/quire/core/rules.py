"""The judgements of the protocol stand in the `rules.py` of each room: a line or two each, with the sentence that it implements.

Source: BookKeeper protocol; Vanlightly's guide; BookKeeper ledgers to logs; Vanlightly's unbounded ledgers.
"""

from __future__ import annotations

from typing import Any, Self


class RuleSet:
    """Static methods, each a judgement. Machines are handed an instance: production's, or one in which a check takes out a fix."""

    altered = False
    """Whether it is another than production's."""

    @classmethod
    def rooms(cls) -> dict[str, type[RuleSet]]:
        """The class in which each judgement stands."""
        return {
            name: room
            for room in cls.__mro__
            for name, member in vars(room).items()
            if isinstance(member, staticmethod)
        }

    def but(self, **instead: Any) -> Self:
        """These judgements with others in place of some, by their names."""
        made = type(self)()
        made.altered = True
        for name, rule in (vars(self) | instead).items():
            if not hasattr(self, name):
                raise AttributeError(name)
            setattr(made, name, rule)
        return made
