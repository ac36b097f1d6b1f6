"""Hints in the words of the surface that is used: asyncio's in the library, quire.blocking's there, the shell's at a shell."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import quire
from quire import blocking
from quire.cli.console.failures import describe
from quire.cli.console.wording import COMMANDS, OPTIONS, for_command_line
from quire.core.errors import NoSuchLogError
from quire.core.ledger.quorum import check_min_present
from support.commands import every_command

SRC = Path(quire.__file__).parent
OPERATORS = (
    "cli/",
    "spark/",
    "bookie/",
    "storage/space_reasons.py",
    "storage/directory/identity.py",
    "wire/frame_limits.py",
    "wire/store_records.py",
)
"""Where texts are for a shell, for Spark, or for the operator of a bookie."""
ALLOWED = {"--max-txn-ops", "--ignore-lac", "--quota-backend-bytes"}
"""An option of etcd; and one of a whole command that is put together from parts."""
BY_ITSELF = {"drain()"}
"""What commands do without being advised to."""


@cache
def texts() -> list[tuple[str, str]]:
    return [*_texts()]


def _texts() -> Iterator[tuple[str, str]]:
    """Every text of the library that is no docstring, with its place; values in it are `{}`."""
    for path in sorted(SRC.rglob("*.py")):
        place = str(path.relative_to(SRC))
        if place.startswith(OPERATORS):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        skipped |= {
            id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values
        }
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = (str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
                yield f"{place}:{node.lineno}", "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{place}:{node.lineno}", node.value


def test_the_library_names_no_option_but_in_a_whole_command() -> None:
    for place, text in texts():
        without_commands = re.sub(r"`quire [^`]*`", "", text)
        assert set(re.findall(r"--[a-z][a-z-]+", without_commands)) <= ALLOWED, f"{place}: {text}"


def test_every_call_and_setting_that_the_library_advises_has_its_words_at_a_shell() -> None:
    calls = {call for _, text in texts() for call in re.findall(r"`await ([^`]+)`", text)}
    assert calls == set(COMMANDS) | BY_ITSELF
    options = {
        option for command in every_command().values() for param in command.params for option in param.opts
    }
    assert set(OPTIONS.values()) <= options
    for line in COMMANDS.values():
        words = line.split()
        assert tuple(words[1:3]) in every_command()


def test_settings_become_options() -> None:
    with pytest.raises(quire.InvalidQuorumError, match="`min_present` \\(9\\)") as caught:
        check_min_present(9, 3, 2)
    assert str(describe(caught.value)["message"]).startswith("--min-present (9), the bookies")
    assert (
        for_command_line("raise `ClientConfig.frame_bytes_max`; `own` is {}", {})
        == "raise --frame-bytes-max; `own` is {}"
    )


async def test_one_refusal_in_three_wordings() -> None:
    with pytest.raises(NoSuchLogError, match=re.escape("; `await log.create()` creates it")) as caught:
        async with quire.connect("memory:wording") as client:
            await client.log("nothing").describe()
    assert "; `quire log create nothing` creates it" in str(describe(caught.value)["message"])


def test_the_blocking_client_advises_no_await() -> None:
    with blocking.connect("memory:wording") as client:
        log = client.log("nothing")
        for call in (log.describe, log.open_writer, lambda: next(iter(log.read()))):
            with pytest.raises(NoSuchLogError, match=re.escape("; `log.create()` creates it")):
                call()
