"""Taking exactly one fix out: what is replaced, where it shows, which invariant breaks.

A mutant is a `Switches` that differs from what ships in one part. Nothing here is reached by production code. All of them
stand in one table, `mutants.py`.

Source: docs/counterexamples.md, "All of them"; docs/decisions/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from quire_testing.explorer.patches import Patch
from quire_testing.explorer.switches import RULES, SHIPPED, Switches

C_co = TypeVar("C_co", covariant=True)
"""The configurations of one world."""

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Mutant(Generic[C_co]):
    """One fix taken out.

    Attributes:
        name: its name in docs/counterexamples.md, "All of them": a number behind D or X, or a few words.
        what: what is wrong now.
        switches: what runs instead.
        configuration: where it shows; its type says in which world.
        violated: the invariant that breaks.
        rules: the rules that are replaced.
        begin: the commands of a recorded start, for what is far from the beginning.
        names_slots: slots are no longer alike, so that states must not be renamed.
    """

    name: str
    what: str
    switches: Switches
    configuration: C_co
    violated: str
    rules: tuple[str, ...] = ()
    begin: tuple[str, ...] = ()
    names_slots: bool = False


def with_rules(
    name: str,
    what: str,
    configuration: C,
    violated: str,
    *patches: Patch,
    begin: tuple[str, ...] = (),
    names_slots: bool = False,
    **replaced: Any,
) -> Mutant[C]:
    """A mutant that differs in rules and in the source of functions only.

    Args:
        patches: the functions.
        replaced: the rules by their names, as they are instead.
    """
    rules = RULES.but(**replaced) if replaced else RULES
    switches = replace(SHIPPED, rules=rules, patches=patches)
    return Mutant(name, what, switches, configuration, violated, tuple(replaced), begin, names_slots)
