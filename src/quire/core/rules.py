"""The protocol's rules: what covers, what fences, where a fragment begins. They stand in the `rules.py` of each package of `core`.

A rule is a static method of a line or two, with the sentence that it implements. Machines call them on an instance that they
are passed: production's (`RULES` of the same module), or, in tests and the explorer, one in which a rule is replaced (a
mutant).

Source: BookKeeper protocol; Vanlightly's guide; BookKeeper ledgers to logs; Vanlightly's unbounded ledgers.
"""

from __future__ import annotations

from typing import Any, Self


class RuleSet:
    """Static methods, each a rule."""

    altered = False
    """Whether it is another than production's."""

    @classmethod
    def rooms(cls) -> dict[str, type[RuleSet]]:
        """The class in which each rule stands."""
        return {
            name: room
            for room in cls.__mro__
            for name, member in vars(room).items()
            if isinstance(member, staticmethod)
        }

    def but(self, **instead: Any) -> Self:
        """These rules with others in place of some, by their names."""
        made = type(self)()
        made.altered = True
        for name, rule in (vars(self) | instead).items():
            if not hasattr(self, name):
                raise AttributeError(name)
            setattr(made, name, rule)
        return made
