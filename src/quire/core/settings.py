"""Settings: what each may be stands at its field, and one that may not be gets the same error in every package. Pure.

And the pause that doubles from one setting to another.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from quire.core.errors import MisuseError, QuireError

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`, whole ones where `low` is an int; None too, if `or_none`; `why` no other."""

    low: float
    high: float
    or_none: bool = False
    why: str = ""

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(
            value, int if isinstance(self.low, int) else int | float
        ):
            return value is None and self.or_none
        return self.low <= value <= self.high

    def __str__(self) -> str:
        kind = "an integer" if isinstance(self.low, int) else "a number"
        return f"{kind} from {self.low:.0f} to {self.high:.0f}{' or None' * self.or_none}{self.why and f' ({self.why})'}"


class Choice(tuple[object, ...]):
    """One of a few values."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self))}"


def number(default: float | None, low: float, high: float) -> Any:
    """A field that holds a number of a `Range`; also None, if that is its default."""
    return field(default=default, metadata={"allowed": Range(low, high, default is None)})


def choice(*values: object) -> Any:
    """A field that holds one of these values, by default the first."""
    return field(default=values[0], metadata={"allowed": Choice(values)})


def check_settings(settings: Any, where: str | None = None, error: type[QuireError] = MisuseError) -> None:
    """Refuse settings that cannot work: a dataclass whose fields are made with `number` and `choice`.

    Args:
        settings: one whose name ends in `_max` may not be below the one that ends in `_min`.
        where: what stands before their names in the error; None: their class.
        error: is raised.

    Raises:
        MisuseError: naming the setting, its value and what it may be.
    """
    for each in fields(settings):
        if (allowed := each.metadata.get("allowed")) is not None:
            least = getattr(settings, each.name.removesuffix("max") + "min", None)
            if least is not None:
                allowed = replace(allowed, low=max(allowed.low, least))
            name = f"`{type(settings).__name__}.{each.name}`" if where is None else f"{where}`{each.name}`"
            check_setting(name, getattr(settings, each.name), allowed, error)


def check_setting(
    name: str, value: object, allowed: Range | Choice, error: type[QuireError] = MisuseError
) -> None:
    """Refuse the value of one setting, if it is not allowed.

    Raises:
        MisuseError: naming the setting, its value and what it may be.
    """
    if value not in allowed:
        raise error(mistake(name, allowed, value))


def mistake(name: str, allowed: object, value: object) -> str:
    """What is said of a setting's value that is not allowed, by every surface that takes settings."""
    return f"{name} must be {allowed}, got {value!r}"


def doubled(pause: N, most: N, times: int = 1) -> N:
    """The pause after so many doublings, which end at the longest."""
    return min(pause * (1 << min(times, 30)), most)
