"""Options as annotations: what a function, or a dataclass, says of the options of a command line that typer makes of it.

An argument that is a dataclass stands for an option for each of its fields: several commands share them, and it checks
what contradicts itself.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

Options = dict[str, tuple[Any, Any]]
"""Options by name: each one's annotation and default."""


def options_of(source: Any, names: dict[str, Any] | None = None) -> tuple[Options, dict[str, Any]]:
    """The options of a function or dataclass, and its arguments that are dataclasses; what has no `Annotated` type is none.

    Args:
        source: the function or class.
        names: types that its annotations name and that it does not import.
    """
    hints = get_type_hints(source, localns=names, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    found: Options = {}
    for name, param in inspect.signature(source).parameters.items():
        if name in groups:
            found |= options_of(groups[name])[0]
        elif hasattr(hints.get(name), "__metadata__"):
            found[name] = hints[name], param.default
    return found, groups


def grouped(given: dict[str, Any], groups: dict[str, Any]) -> dict[str, Any]:
    """Values of options as arguments: those of a dataclass become one of it."""
    return given | {
        name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        for name, kind in groups.items()
    }


def take_options(command: Any, options: Options, source: Any) -> None:
    """Give a function the signature by which typer finds its options, and the name and documentation of another."""
    params = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
        for name, (hint, default) in options.items()
    ]
    command.__name__, command.__doc__ = source.__name__, source.__doc__
    command.__annotations__ = {param.name: param.annotation for param in params}
    command.__signature__ = inspect.Signature(params)
