"""Words as people type them: numbers with separators, options anywhere, and what a wrong word means."""

import contextlib

import pytest
import typer
from typer.testing import CliRunner

from quire.cli.cluster.orphans import _parse as ids_of
from quire.cli.console.words import nearest, options_behind
from quire.cli.log.ranges import parse_until
from quire.cli.main import app
from quire.env.numbers import number_of
from support.commands import every_command, root

WRONG = {
    "list": "quire log list",
    "append x": "quire log append x",
    "status": "quire cluster status",
    "help": "quire --help",
    "help log append": "quire log append --help",
    "log help": "quire log --help",
    "version": "quire --version",
    "logs list": "quire log list",
    "log lsit --limit 3": "quire log list --limit 3",
    "ledger bookies": "quire cluster bookies",
    "--json status": "quire cluster status",
}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1180", 1180),
        ("1,180", 1180),
        (" 12,345,678 ", 12345678),
        ("-1", -1),
        *(
            (text, None)
            for text in ("", "many", "1,18", "11800,000", ",180", "1,,180", "1.180", "1 180", "9" * 41)
        ),
    ],
)
def test_a_number_is_digits_or_as_we_print_it(text: str, number: int | None) -> None:
    assert number_of(text) == number


def test_every_whole_number_of_a_command_is_read_so() -> None:
    found = taken = 0
    for command in every_command().values():
        context = command.make_context("it", [], resilient_parsing=True)
        for param in command.params:
            if param.type.name.partition(" ")[0] == "int" and param.nargs == 1 and not param.multiple:
                found += 1
                with contextlib.suppress(typer.BadParameter):  # it is a number, and above the option's bound
                    assert param.process_value(context, "1,180") == 1180, (command.name, param.opts)
                    taken += 1
    assert found > 50
    assert taken > 0.8 * found
    assert parse_until("1,180").offset == 1180
    assert ids_of(["1,180", "2,000-2,001"]) == [range(1180, 1181), range(2000, 2002)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ledger read many", "'LEDGER': 'many' is no whole number (write digits, as 1180 or 1,180)."),
        ("log read orders --last 1,18", "'1,18' is no whole number"),
        ("bench append --window 0", "'--window': it takes 1 or more, not 0."),
        ("bench append --seconds soon", "'--seconds': 'soon' is no number."),
        ("bench append --seconds 0", "'--seconds': it takes 0.1 or more, not 0."),
        ("cluster lost-delay 3,000,000,000", "it takes 2,147,483,647 or less, not 3,000,000,000."),
    ],
)
def test_what_is_no_number_or_out_of_bounds_is_named(words: str, said: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2
    assert said in done.stderr


@pytest.mark.parametrize(("typed", "meant"), WRONG.items())
def test_a_command_that_is_not_there_names_the_one_that_is_meant(typed: str, meant: str) -> None:
    done = CliRunner().invoke(app, typed.split())
    assert done.exit_code == 2
    assert f"use `{meant}" in done.stderr


def test_no_command_and_no_option_is_suggested_that_is_not_near() -> None:
    assert "`quire --help` lists the commands" in CliRunner().invoke(app, ["frobnicate"]).stderr
    known = ["--cluster", "--format", "--start"]
    assert nearest("--strat", known) == "--start"
    assert nearest("--charter", known) is None
    shown = CliRunner().invoke(app, ["log", "read", "orders", "--strat", "1"])
    assert shown.stderr.endswith("There is no option --strat: use --start.\n")
    assert (
        CliRunner().invoke(app, ["log", "read", "orders", "--x"]).stderr.endswith("There is no option --x.\n")
    )


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("--cluster c log list", "log list --cluster c"),
        ("--json log --cluster=c list --limit 3", "log list --json --cluster=c --limit 3"),
        ("--start 5 -n5 log read orders", "log read --start 5 -n5 orders"),
        ("--timeout 3 cluster health", "cluster health --timeout 3"),
        ("--no-wait cluster accept-store --yes", "cluster accept-store --no-wait --yes"),
        ("bookie --dir d --cluster c", "bookie --dir d --cluster c"),
        ("bookie --cluster c space --json", "bookie space --cluster c --json"),
        ("spark --cluster c run scrub --out o", "spark run scrub --out o --cluster c"),
        ("--version log list", "--version log list"),
        ("--strat 1 log list", "--strat 1 log list"),
        ("log append orders -- --cluster", "log append orders -- --cluster"),
    ],
)
def test_options_before_the_command_go_behind_it_if_it_has_them(typed: str, read: str) -> None:
    assert options_behind(root(), typed.split()) == read.split()
