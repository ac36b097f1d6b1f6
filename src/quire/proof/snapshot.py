"""Copies of machines, and their states as plain values that can be compared and counted.

A machine of `core` keeps its state in `__slots__` of plain values; a new field is therefore part of the state at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from quire.core.effects import Problem

T = TypeVar("T")

NOT_STATE = frozenset({"rules", "_rules", "limits", "out", "_name_page", "_layout", "_host"})
"""What every copy of a machine shares: never changed by an input."""


_SLOTS: dict[type, tuple[str, ...]] = {}


def slots_of(kind: type) -> tuple[str, ...]:
    """The names of a machine's fields, those of its bases included."""
    slots = _SLOTS.get(kind)
    if slots is None:
        names = {name for base in kind.__mro__ for name in getattr(base, "__slots__", ())}
        slots = _SLOTS[kind] = tuple(sorted(names))
    return slots


def clone(machine: T) -> T:
    """An independent machine in the same state."""
    kind = type(machine)
    other = kind.__new__(kind)
    for name in slots_of(kind):
        setattr(other, name, _copied(getattr(machine, name)))
    return other


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(part) for part in value]
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, deque):
        return deque(value)
    if is_dataclass(value) and not isinstance(value, type) and not type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return type(value)(*(getattr(value, part.name) for part in fields(value)))
    return value


def frozen(value: Any) -> Any:
    """A value as something that can be a key: lists and dictionaries as tuples, in their order."""
    if isinstance(value, list | tuple | deque):
        return tuple(frozen(part) for part in value)
    if isinstance(value, dict):
        return tuple((key, frozen(part)) for key, part in value.items())
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Problem):
        return value.kind.__name__  # its sentence names bookies, and nothing depends on it
    if is_dataclass(value) and not isinstance(value, type) and not type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return tuple(frozen(getattr(value, part.name)) for part in fields(value))
    return value


def state_of(machine: object, *, without: frozenset[str] = frozenset()) -> tuple[Any, ...]:
    """A machine's state as one value: equal states behave alike."""
    return tuple(
        frozen(getattr(machine, name))
        for name in slots_of(type(machine))
        if name not in NOT_STATE and name not in without
    )
