"""Each `Source:` leads somewhere: to a heading of a page here, to a file, or to a published document of docs/sources.md.

One `Source:` is clauses, separated by semicolons. A clause is a path or the name of a document, then what is meant in it
(`, "a section"`, `, WORD`), then, after a colon, what is quoted from it or said about it.
"""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACES = [ROOT / name for name in ("src", "tests", "tools", "bench")]
PUBLISHED = ROOT / "docs" / "sources.md"
PATH = re.compile(r"`?(?P<path>[\w./-]+\.(?:md|py|json|proto))`?")
SECTION = re.compile(r'"([^"]+)"')
PRIVATE = re.compile(
    r"[Dd]ecisions? F-\d|\bissue [1-9]\d?\b|\bspark\.md \d|(?:protocol|checking|faults) reference\b|\(00[0-4]\)"
)
MARK = re.compile(r"(?:^|\. )Source: ", re.MULTILINE)


@cache
def citations():
    """Every `Source:` paragraph of every docstring: where it stands, and its text in one line."""
    found = []
    for path in sorted(file for place in PLACES for file in place.rglob("*.py")):
        if path == Path(__file__) or "_pb2" in path.name:
            continue
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                    if MARK.search(paragraph):
                        where = f"{path.relative_to(ROOT)}:{getattr(node, 'name', '')}"
                        found.append((where, " ".join(MARK.split(paragraph, maxsplit=1)[1].split())))
    return found


def outside_quotes(text, separator):
    """The parts of a text between separators that stand in no quotation."""
    parts = [""]
    for number, piece in enumerate(text.split('"')):
        first, *others = piece.split(separator) if number % 2 == 0 else [piece]
        parts[-1] += ('"' if number else "") + first
        parts += others
    return [part.strip() for part in parts]


@cache
def headings(path):
    """The headings of a page, without marks of code; one like `Record: 104 bytes` counts as `Record` too."""
    found = {
        line.lstrip("#").strip().replace("`", "") for line in path.read_text().splitlines() if line[:1] == "#"
    }
    return found | {heading.split(":")[0] for heading in found}


@cache
def published():
    """Of each document of docs/sources.md its name, and the sections that it is cited by (empty: any)."""
    documents = {}
    for part in PUBLISHED.read_text().split("\n## ")[1:]:
        name, _, text = part.partition("\n")
        sections = re.search(r"^Sections: (.*?)\.$", text, re.M | re.S)
        documents[name] = (
            {section.strip() for section in " ".join(sections[1].split()).split(";")} if sections else set()
        )
    return documents


def resolve(clause):
    """What is wrong with one clause; nothing when it leads somewhere."""
    pointer = outside_quotes(clause, ": ")[0].rstrip(".:")
    sections = SECTION.findall(pointer)
    if match := PATH.match(pointer):
        path = next(
            (at for at in (ROOT / match["path"], ROOT / "src/quire" / match["path"]) if at.is_file()), None
        )
        if path is None:
            return f"no file {match['path']}"
        if path.suffix == ".md":
            missing = [section for section in sections if section.replace("`", "") not in headings(path)]
            text = path.read_text()
            words = [
                word
                for word in re.findall(r"\b[A-Z][A-Z_]+\b", SECTION.sub("", pointer[match.end() :]))
                if word not in text
            ]
            return f"{match['path']} has no {missing + words}" if missing or words else None
        return None
    name = max((name for name in published() if pointer.startswith(name)), key=len, default=None)
    if name is None:
        return "neither a path nor a document of docs/sources.md"
    known = published()[name]
    missing = [section for section in sections if known and section not in known]
    return f"docs/sources.md gives {name} no section {missing}" if missing else None


def test_every_source_resolves():
    wrong = [
        f"{where}: {clause!r}: {why}"
        for where, text in citations()
        for clause in outside_quotes(text, ";")
        if (why := resolve(clause))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_source_is_overlooked():
    """One that is no paragraph's of a docstring, for example in a comment, would not be resolved."""
    files = {path.relative_to(ROOT): path.read_text() for place in PLACES for path in place.rglob("*.py")}
    there = {
        f"{path}": len(re.findall(r"(?<!class )(?<!-> )\bSource:(?! TypeAlias)", text))
        for path, text in files.items()
    }
    there.pop("tests/unit/test_sources.py")
    found = [where.split(":")[0] for where, _ in citations()]
    assert {path: count for path, count in there.items() if count} == Counter(found)


def test_codes_of_private_lists_are_gone():
    """What decides a thing has a page with a name; ids of mutants, invariants and claims are defined in tables."""
    files = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "src/quire").rglob("*.py")]
    rooms = {ROOT / "src/quire" / room for room in ("proof", "sim", "replay", "crash", "history")}
    lines = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if not rooms & set(path.parents)
        for line in path.read_text().splitlines()
        if PRIVATE.search(line)
    ]
    assert not lines, "\n".join(lines)


def test_published_documents_have_an_address():
    parts = PUBLISHED.read_text().split("\n## ")[1:]
    assert not [part.split("\n")[0] for part in parts if not re.search(r"<https?://[^>]+>", part)]


def test_published_documents_are_cited():
    names = {name for _, text in citations() for name in published() if name in text}
    assert names == set(published())


def test_clauses():
    assert outside_quotes('a, "b; c": d; e', ";") == ['a, "b; c": d', "e"]
    assert resolve("docs/testing.md") is None
    assert resolve('`docs/formats/run.md`, "The run body": whatever: "x".') is None
    assert resolve("docs/no-such.md") == "no file docs/no-such.md"
    assert resolve('docs/testing.md, "Nowhere"') == "docs/testing.md has no ['Nowhere']"
    assert resolve("a private list, F-10") == "neither a path nor a document of docs/sources.md"
