"""Copies of machines, and their states as plain values that can be compared and counted.

A machine of `core` keeps its state in `__slots__` of plain values and of parts, which do the same; a new field is
therefore part of the state at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

from quire.core.doubt import Doubt
from quire.core.effects import Problem

T = TypeVar("T")

NOT_STATE = frozenset({"rules", "_rules", "limits", "out", "_name_page", "_layout", "_host"})
"""What every copy of a machine shares: never changed by an input."""


PLAIN = frozenset({int, str, bytes, bool, type(None), Doubt})
"""Types whose values are never changed and stand for themselves."""

_SLOTS: dict[type, tuple[str, ...]] = {}
_STATE_SLOTS: dict[tuple[type, frozenset[str]], tuple[str, ...]] = {}
_FIELDS: dict[type, tuple[str, ...] | None] = {}
_PARTS: dict[type, bool] = {}


def slots_of(kind: type) -> tuple[str, ...]:
    """The names of a machine's fields, those of its bases included."""
    slots = _SLOTS.get(kind)
    if slots is None:
        names = {name for base in kind.__mro__ for name in getattr(base, "__slots__", ())}
        slots = _SLOTS[kind] = tuple(sorted(names))
    return slots


def is_part(kind: type) -> bool:
    """Whether values of this type are parts of a machine: they have a state that changes, and check it themselves."""
    found = _PARTS.get(kind)
    if found is None:
        values = issubclass(kind, tuple) or (is_dataclass(kind) and _fields_of(kind) is None)
        found = _PARTS[kind] = hasattr(kind, "check") and hasattr(kind, "__slots__") and not values
    return found


def clone(machine: T) -> T:
    """An independent machine in the same state."""
    kind = type(machine)
    other = kind.__new__(kind)
    for name in slots_of(kind):
        value = getattr(machine, name)
        setattr(other, name, value if type(value) in PLAIN else _copied(value))
    return other


def _copied(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    if is_part(type(value)):
        return clone(value)
    if isinstance(value, list):
        return value[:] if PLAIN.issuperset(map(type, value)) else [_copied(part) for part in value]
    if isinstance(value, dict):
        other = value.copy()
        if not PLAIN.issuperset(map(type, value.values())):
            other.update((key, _copied(part)) for key, part in value.items())
        return other
    if isinstance(value, deque | set):
        return value.copy()
    names = _fields_of(type(value))
    return value if names is None else type(value)(*(_copied(getattr(value, name)) for name in names))


def frozen(value: Any) -> Any:
    """A value as something that can be a key: lists and dictionaries as tuples, in their order."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, list | tuple | deque):
        if PLAIN.issuperset(map(type, value)):
            return tuple(value)
        return tuple([frozen(part) for part in value])
    if isinstance(value, dict):
        if PLAIN.issuperset(map(type, value.values())):
            return tuple(value.items())
        return tuple([(key, frozen(part)) for key, part in value.items()])
    if isinstance(value, Enum):
        return value.name
    if is_part(type(value)):
        return state_of(value)
    if isinstance(value, Problem):
        return value.kind.__name__  # its sentence names bookies, and nothing depends on it
    names = _fields_of(type(value))
    return value if names is None else tuple(frozen(getattr(value, name)) for name in names)


def _fields_of(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass whose values change, None for every other type."""
    try:
        return _FIELDS[kind]
    except KeyError:
        changes = is_dataclass(kind) and not kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        names = _FIELDS[kind] = tuple(part.name for part in fields(kind)) if changes else None
        return names


def state_of(machine: object, *, without: frozenset[str] = frozenset()) -> tuple[Any, ...]:
    """A machine's state as one value: equal states behave alike."""
    kind = type(machine)
    names = _STATE_SLOTS.get((kind, without))
    if names is None:
        names = tuple(name for name in slots_of(kind) if name not in NOT_STATE and name not in without)
        _STATE_SLOTS[kind, without] = names
    values = [getattr(machine, name) for name in names]
    return tuple([value if type(value) in PLAIN else frozen(value) for value in values])
