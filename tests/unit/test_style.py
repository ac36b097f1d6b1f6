"""What a reviewer would otherwise have to say each time (CONTRIBUTING.md)."""

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path

import code_size
import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES = 60
CLASS_LINES = 400

LONG_CLASSES = {
    "src/quire_testing/sim/workloads.py:Workload": "the programs of all kinds of runs, each a few lines, that share one history",
    "src/quire/bookie/ledgers/ledgers.py:Ledgers": "one short method per request; what several need is in parts of its own",
    "src/quire/client/writing/writer.py:LedgerWriter": "the side that callers see: one method per way to append, and per way to leave",
    "src/quire/core/ledger/writer.py:WriterMachine": "one machine: every input and every effect; what is decided is in its parts",
    "src/quire/storage/ledger_storage.py:LedgerStorage": "the disk as the bookie sees it: one short method per question",
    "src/quire_testing/history/ledger.py:LedgerJudge": "one judge: reads, acknowledgements, ends and LACs are compared with the same entries",
}
"""Classes past the limit (`path:Class`), each with its reason."""

LONG_FUNCTIONS = {
    "src/quire_testing/commands/check.py:check": "one option a line: each budget of a world is one",
    "src/quire_testing/commands/simulate.py:simulate": "one option a line",
    "src/quire/cli/demo/story.py:tell": "the demo's steps in order; splitting them would hide the order",
}
"""Functions past the limit (`path:name`), each with its reason."""

SETTINGS = "a frozen record of settings: one a line, with its unit, its default and its limit"
CONNECTION = "what a connection receives into is `FrameProtocol`, on the way of every byte; the rest is who waits for what"
WORLD = "the tables of a world and where each part stands in a state; its steps are in components"
LARGE_CLASSES = {
    "quire.bookie.connections.bookkeeper_connection.BookKeeperConnection": CONNECTION,
    "quire.bookie.connections.client_connection.ClientConnection": CONNECTION,
    "quire.bookie.connections.connection.Connection": CONNECTION,
    "quire.net.channel.Channel": CONNECTION,
    "quire.bookie.config.BookieConfig": SETTINGS,
    "quire.client.config.ClientConfig": SETTINGS,
    "quire.spark.read_options.ReadOptions": SETTINGS,
    "quire_testing.explorer.configuration.Configuration": SETTINGS,
    "quire.bookie.server.BookieServer": "the parts of one bookie, in the order in which they begin and end",
    "quire_testing.replay.bookies.BookieProgram": "a `BookieServer` with the test's files and clock",
    "quire.client.writing.writer.LedgerWriter": "what a turn collected, and what is read for every entry, beside its parts",
    "quire.log.writer.RecordSender": "one order of records across ledgers: what was sent, whom it belongs to, how it ended",
    "quire.spark.decode.ArrowBuilder": "the columns of one Arrow batch in the making, a list each",
    "quire.storage.journal.Journal": "the group in the making, the groups on their way, and who is told of both",
    "quire.storage.ledger_storage.LedgerStorage": "the parts of one disk, in the order in which they begin and end",
    "quire_testing.history.ledger.LedgerJudge": "what one ledger's events said so far, compared as they come",
    "quire_testing.explorer.parts.WorldParts": WORLD,
    "quire_testing.explorer.world.LedgerWorld": WORLD,
    "quire_testing.explorer.sources.SourcesWorld": WORLD,
    "quire_testing.replay.world.ProgramWorld": WORLD,
}
"""Classes of more than 20 fields (`tools/code_size.py`), each with its reason."""

FORBIDDEN_IMPORTS = {f"import {module}" for module in ("pickle", "marshal", "shelve", "dill", "cloudpickle")}
"""Bytes from a peer or a disk are parsed, never executed."""

FORBIDDEN_CALLS = {"eval", "exec", "yaml.load", "os.system"}
PROMISES = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u27bf\ufe0f]")


def python_files(*folders):
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if not path.name.endswith("_pb2.py")]


LIBRARY = python_files("src")
EVERYTHING = python_files("src", "tests", "bench")


def name(path):
    return str(path.relative_to(ROOT))


def suspects(tree):
    """Calls, imports and attributes by their names, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=called)):
                yield called, node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=called)):
                yield f"{module}.{called}", node.lineno
            case ast.Import(names=names):
                yield from ((f"import {alias.name.partition('.')[0]}", node.lineno) for alias in names)
            case ast.ImportFrom(module=str(module)):
                yield f"import {module.partition('.')[0]}", node.lineno
            case ast.Attribute(attr="__dict__"):
                yield "__dict__", node.lineno


@functools.cache
def tree(path):
    """What a file says, parsed once for all that look at it."""
    return ast.parse(path.read_text())


@functools.cache
def found():
    """Where each suspect stands: `path:line`."""
    places = defaultdict(list)
    for path in python_files("src", "tests"):
        for suspect, line in suspects(tree(path)):
            places[suspect].append(f"{name(path)}:{line}")
    return places


def among(names, *folders):
    return [place for one in sorted(names) for place in found()[one] if place.startswith(folders)]


def functions(tree, prefix=""):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{node.name}", node


def code_lines(node):
    """Lines of a function without its docstring."""
    length = node.end_lineno - node.lineno + 1
    first = node.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        length -= first.end_lineno - first.lineno + 1
    return length


def test_classes_are_short_or_have_a_reason():
    """A part with a state of its own is a class; never cut one by inheritance. Docstrings and comments do not count."""
    found = set()
    for path in LIBRARY:
        text = path.read_text()
        if len(text.splitlines()) > CLASS_LINES:
            for node in tree(path).body:
                if isinstance(node, ast.ClassDef) and node.end_lineno - node.lineno > CLASS_LINES:
                    of_class = ast.get_source_segment(text, node)
                    if code_size.code_lines(of_class, ast.parse(of_class)) > CLASS_LINES:
                        found.add(f"{name(path)}:{node.name}")
    assert found == LONG_CLASSES.keys()


def test_functions_are_short_or_have_a_reason():
    """A reason for something that is gone is removed."""
    lengths = {
        f"{name(path)}:{function}": code_lines(node)
        for path in LIBRARY
        for function, node in functions(tree(path))
    }
    assert {key for key, lines in lengths.items() if lines > FUNCTION_LINES} == LONG_FUNCTIONS.keys()


def test_classes_of_many_fields_have_a_reason():
    """Give a part of it a state of its own, held as one field; or say here why it has none."""
    assert set(code_size.count().large_classes()) == LARGE_CLASSES.keys()


def test_the_library_does_not_print():
    printing = ("src/quire/cli/", "src/quire_testing/commands/")
    assert [place for place in among({"print"}, "src/") if not place.startswith(printing)] == []


def test_bytes_are_never_executed():
    assert among(FORBIDDEN_IMPORTS | FORBIDDEN_CALLS, "src/") == []


def test_nothing_is_put_into_an_objects_dictionary():
    assert among({"__dict__"}, "src/") == []


def test_tests_do_not_sleep():
    """They wait for a condition: tests/support/waiting.py."""
    assert among({"time.sleep", "sleep"}, "tests/") == []


@pytest.mark.parametrize("pattern", [PROMISES, EMOJI], ids=["write it, or open an issue", "emoji"])
def test_no_promises_and_no_emoji(pattern):
    texts = {name(path): path.read_text() for path in EVERYTHING if path != Path(__file__)}
    assert [path for path, text in texts.items() if pattern.search(text)] == []
