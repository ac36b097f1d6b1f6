"""Copies of machines, and their states as plain values that can be compared and counted.

A machine of `core` keeps its state in `__slots__` of plain values and of parts, which do the same; a new field is
therefore part of the state at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from quire.core.bookie.limbo import Limbo
from quire.core.ledger.effects import Problem

T = TypeVar("T")

NOT_STATE = frozenset({"rules", "_rules", "limits", "out", "_name_page", "_layout", "_host"})
"""What every copy of a machine shares: never changed by an input."""


PLAIN = frozenset({int, str, bytes, bool, type(None), Limbo})
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
        setattr(other, name, value if type(value) in _SHARED else _copied(value))
    return other


_SHARED: set[type] = {int, str, bytes, bool, type(None), Limbo, tuple}
"""Types that were met and whose values copies share: they are never changed, and a tuple holds such values only."""

_COPIES: dict[type, Callable[[Any], Any]] = {}
"""How values of the other types are copied."""


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _SHARED:
        return value
    copies = _COPIES.get(kind)
    if copies is None:
        copies = _COPIES[kind] = _way_to_copy(kind)
        if copies is _shared:
            _SHARED.add(kind)
    return copies(value)


def _way_to_copy(kind: type) -> Callable[[Any], Any]:
    if is_part(kind):
        return clone
    if issubclass(kind, list):
        return _copied_list
    if issubclass(kind, dict):
        return _copied_dict
    if issubclass(kind, deque | set):
        return copy
    names = _fields_of(kind)
    return _shared if names is None else partial(_copied_fields, names)


def _shared(value: Any) -> Any:
    return value


def _copied_list(value: list[Any]) -> list[Any]:
    return value[:] if _SHARED.issuperset(map(type, value)) else [_copied(part) for part in value]


def _copied_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    other = value.copy()
    if not _SHARED.issuperset(map(type, value.values())):
        for key, part in value.items():
            other[key] = _copied(part)
    return other


def _copied_fields(names: tuple[str, ...], value: Any) -> Any:
    return type(value)(*[_copied(getattr(value, name)) for name in names])


_FREEZES: dict[type, Callable[[Any], Any]] = {}
"""How values of a type become keys."""


def frozen(value: Any) -> Any:
    """A value as something that can be a key: lists and dictionaries as tuples, in their order."""
    kind = type(value)
    if kind in PLAIN:
        return value
    freezes = _FREEZES.get(kind)
    if freezes is None:
        freezes = _FREEZES[kind] = _way_to_freeze(kind)
    return freezes(value)


def _way_to_freeze(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, list | tuple | deque):
        return _frozen_sequence
    if issubclass(kind, dict):
        return _frozen_dict
    if issubclass(kind, Enum):
        return _name_of
    if is_part(kind):
        return state_of
    if issubclass(kind, Problem):
        return _kind_of  # its sentence names bookies, and nothing depends on it
    names = _fields_of(kind)
    return _shared if names is None else partial(_frozen_fields, names)


def _frozen_sequence(value: Sequence[Any]) -> tuple[Any, ...]:
    if PLAIN.issuperset(map(type, value)):
        return tuple(value)
    return tuple([frozen(part) for part in value])


def _frozen_dict(value: dict[Any, Any]) -> tuple[Any, ...]:
    if PLAIN.issuperset(map(type, value.values())):
        return tuple(value.items())
    return tuple([(key, frozen(part)) for key, part in value.items()])


def _name_of(value: Enum) -> str:
    return value.name


def _kind_of(value: Problem) -> str:
    return value.kind.__name__


def _frozen_fields(names: tuple[str, ...], value: Any) -> tuple[Any, ...]:
    return tuple([frozen(getattr(value, name)) for name in names])


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
