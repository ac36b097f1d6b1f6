"""The words of a command line, as people type them: numbers, options before the command, and what a wrong word means."""

from __future__ import annotations

import contextlib
import math
import shlex
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import typer

from quire.core.errors import MisuseError
from quire.env.numbers import number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NEAR: Final = 0.75
"""How much of two words must be the same before one is suggested for the other."""
_ELSEWHERE: Final = ("log", "cluster", "ledger", "stream", "bookie", "context", "metadata", "bench", "spark")
"""Where a command's name is looked for that was typed without its group, or with another one, in this order."""


class NoSuchCommandError(MisuseError):
    """No command has this name; the message has the one that is meant."""

    code = "usage"


def reader_of_numbers(
    kind: type[int | float], least: float | None, most: float | None
) -> Callable[[object], float]:
    """What reads the value of an option or argument that is a number.

    Args:
        kind: whether it is a whole number.
        least: the smallest that is taken, like `most` the largest; None: there is no such bound.
    """

    def read(value: object) -> float:
        found = value if isinstance(value, int | float) else number_of(str(value))
        if found is None and kind is float:
            with contextlib.suppress(ValueError):
                found = float(str(value))
        if found is None or math.isnan(found):
            what = "no number" if kind is float else "no whole number (write digits, as 1180 or 1,180)"
            raise typer.BadParameter(f"{value!r} is {what}.")
        if least is not None and found < least:
            raise typer.BadParameter(f"it takes {least:,} or more, not {found:,}.")
        if most is not None and found > most:
            raise typer.BadParameter(f"it takes {most:,} or less, not {found:,}.")
        return kind(found)

    return read


def options_behind(root: Any, words: Sequence[str]) -> list[str]:
    """A command line whose options stand behind the command: those that were typed before it, if it has them.

    An option that the command does not have stays where it was typed: its group has it, or refuses it.

    Args:
        root: the command line as a group of commands.
        words: what was typed after the program's name.

    Raises:
        NoSuchCommandError: a word is the name of no command.
    """
    rest = list(words)
    levels: list[tuple[Any, list[list[str]]]] = []
    path: list[str] = []
    command, options = root, []
    while rest and rest[0] != "--":
        if _is_option(rest[0]):
            count = 1 + _takes_next(command, rest)
            options.append(rest[:count])
            rest = rest[count:]
        elif (below := getattr(command, "commands", {}).get(rest[0])) is not None:
            levels.append((command, options))
            path.append(rest.pop(0))
            command, options = below, []
            if not hasattr(command, "commands"):
                break
        elif any(not any(_knows(one, word) for one in _below(command)) for word, *_ in options):
            return list(words)  # the option is what is wrong: its group says so
        else:
            raise _no_such_command(root, path, rest)
    moved: list[str] = []
    front: list[str] = []
    for (group, typed), name in zip(levels, path, strict=True):
        for option in typed:
            (moved if _has(command, option[0]) and not _is_whole_answer(group, option[0]) else front).extend(
                option
            )
        front.append(name)
    own = [word for option in options for word in option]
    # The first word of a command that passes its words on is a name.
    return [*front, *own, *rest, *moved] if _passes_on(command) else [*front, *moved, *own, *rest]


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word that is most like a word; None if none is near."""
    return next(iter(get_close_matches(word, known, n=1, cutoff=NEAR)), None)


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1


def _named(word: str) -> str:
    """The option in a word: without a value after `=`, and of short ones the first."""
    return word.partition("=")[0] if word.startswith("--") else word[:2]


def _below(command: Any) -> Iterator[Any]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _below(below)


def _has(command: Any, word: str) -> bool:
    return _passes_on(command) or _knows(command, word)


def _knows(command: Any, word: str) -> bool:
    return any(_named(word) in _spellings(param) for param in command.params)


def _passes_on(command: Any) -> bool:
    return bool(command.context_settings.get("ignore_unknown_options"))


def _spellings(param: Any) -> list[str]:
    return [*param.opts, *param.secondary_opts]


def _is_whole_answer(group: Any, word: str) -> bool:
    """Whether an option of a group is answered at once, as `--version`."""
    return any(_named(word) in _spellings(param) and param.is_eager for param in group.params)


def _takes_next(group: Any, words: Sequence[str]) -> bool:
    """Whether the word after an option is the option's value: the group's own, or that of a command below it."""
    word = words[0]
    if "=" in word or (not word.startswith("--") and len(word) > 2) or len(words) == 1:
        return False
    kinds = {
        bool(param.is_flag)
        for one in ([group] if _knows(group, word) else _below(group))
        for param in one.params
        if word in _spellings(param)
    }
    return kinds == {False} or (len(kinds) == 2 and words[1] not in getattr(group, "commands", {}))


def _no_such_command(root: Any, path: Sequence[str], rest: Sequence[str]) -> NoSuchCommandError:
    typed, line = rest[0], shlex.join(["quire", *path, rest[0]])
    meant = [*path, *rest[1:], "--help"] if typed == "help" else _meant(root, path, rest)
    if meant is None:
        group = shlex.join(["quire", *path])
        return NoSuchCommandError(f"There is no command `{line}`; `{group} --help` lists the commands.")
    return NoSuchCommandError(f"There is no command `{line}`: use `{shlex.join(['quire', *meant])}`.")


def _meant(root: Any, path: Sequence[str], rest: Sequence[str]) -> list[str] | None:
    """The command line that is meant; None if the word is like no command's name."""
    typed, behind = rest[0], rest[1:]
    if typed == "version":
        return ["--version"]
    group = root
    for name in path:
        group = group.commands[name]
    if near := nearest(typed, list(group.commands)):
        return [*path, near, *behind]
    others = {name: list(root.commands[name].commands) for name in _ELSEWHERE}
    for may_be_near in (False, True):
        for name, names in others.items():
            command = (
                nearest(typed, names) if may_be_near else next((one for one in names if one == typed), None)
            )
            if command is not None:
                return [name, command, *behind]
    return None
