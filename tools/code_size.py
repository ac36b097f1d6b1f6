"""Count the code of `src`: lines by package, class names that stand twice, classes with many fields, long files.

A line of code is a line that holds code: blank lines, lines of comments and docstrings (every string that is a statement
of its own) do not count; another string that spans lines counts with all of them. Files that protoc wrote are
left out. A field is what an instance holds: a name in `__slots__`, an annotated name in the body of the class (not a
`ClassVar`), or a `self.name` that a method assigns; fields of base classes in `src` count, each name once.

    python tools/code_size.py          # tables
    python tools/code_size.py --json   # the same for programs
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = ROOT / "src"
FIELDS_MAX: Final = 20


@dataclass(slots=True)
class CountedClass:
    """One class as the counter sees it.

    Attributes:
        module: where it stands, as `quire.core.ledger.writer`.
        bases: its bases, each as (module, name) where the name could be resolved inside `src`.
        fields: what its own body and methods give an instance.
    """

    module: str
    name: str
    bases: list[tuple[str, str]] = field(default_factory=list)
    fields: set[str] = field(default_factory=set)


@dataclass(slots=True)
class CodeSize:
    """What was counted.

    Attributes:
        lines: code lines of each file, by its path below `src`.
        classes: every class on the top level of a module, by (module, name).
    """

    lines: dict[str, int]
    classes: dict[tuple[str, str], CountedClass]

    def by_package(self) -> dict[str, tuple[int, int]]:
        """Files and code lines of each package (`quire/core`, and `quire` for what stands beside the folders)."""
        found: dict[str, list[int]] = defaultdict(list)
        for path, count in self.lines.items():
            found["/".join(Path(path).parent.parts[:2])].append(count)
        return {package: (len(counts), sum(counts)) for package, counts in sorted(found.items())}

    def repeated_names(self) -> dict[str, list[str]]:
        """Public class names that stand in more than one module, with these modules."""
        found: dict[str, list[str]] = defaultdict(list)
        for module, name in self.classes:
            if not name.startswith("_"):
                found[name].append(module)
        return {name: sorted(modules) for name, modules in sorted(found.items()) if len(modules) > 1}

    def large_classes(self) -> dict[str, int]:
        """Classes of more than `FIELDS_MAX` fields, as `module.Class`, with how many."""
        counts = {f"{module}.{name}": len(self.fields((module, name))) for module, name in self.classes}
        return {name: count for name, count in sorted(counts.items()) if count > FIELDS_MAX}

    def fields(self, key: tuple[str, str]) -> set[str]:
        """The fields of a class and of its bases in `src`."""
        found = set(self.classes[key].fields)
        for base in self.classes[key].bases:
            if base in self.classes and base != key:
                found |= self.fields(base)
        return found

    def as_json(self) -> dict[str, object]:
        """Everything that the tables show."""
        return {
            "packages": {
                name: {"files": files, "lines": lines} for name, (files, lines) in self.by_package().items()
            },
            "files": len(self.lines),
            "lines": sum(self.lines.values()),
            "classes": len(self.classes),
            "repeated_names": self.repeated_names(),
            "large_classes": self.large_classes(),
        }


def code_lines(text: str, tree: ast.Module) -> int:
    """Lines of code of one file."""
    docstrings: set[int] = set()
    strings: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant | ast.JoinedStr | ast.Expr):
            continue
        span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if not isinstance(node, ast.Expr):
            strings.update(span)
        elif isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(span)
    lines = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if number in strings or line.strip()[:1] not in {"", "#"}
    }
    return len(lines - docstrings)


def imported_names(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """What each imported name stands for: (module, name), or (module, "") for a module."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = (node.module, alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = (alias.name, "")
    return found


def own_fields(node: ast.ClassDef) -> set[str]:
    """The fields that the body and the methods of a class give its instances."""
    found: set[str] = set()
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            if "ClassVar" not in ast.unparse(inner.annotation):
                found.add(inner.target.id)
        elif isinstance(inner, ast.Assign) and [ast.unparse(each) for each in inner.targets] == ["__slots__"]:
            named = ast.literal_eval(inner.value)
            found |= {named} if isinstance(named, str) else set(named)
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {
                each.attr
                for each in ast.walk(inner)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and isinstance(each.value, ast.Name)
                and each.value.id == "self"
            }
    return {name for name in found if not name.startswith("__")}


def classes_of(module: str, tree: ast.Module) -> list[CountedClass]:
    """The classes on the top level of a module."""
    imported = imported_names(tree)
    here = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    found = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = []
        for base in node.bases:
            inner = base.value if isinstance(base, ast.Subscript) else base
            first, _, rest = ast.unparse(inner).partition(".")
            if first in here:
                bases.append((module, first))
            elif first in imported:
                where, name = imported[first]
                bases.append((where, name) if not rest else (f"{where}.{name}".rstrip("."), rest))
        found.append(CountedClass(module, node.name, bases, own_fields(node)))
    return found


def count(source: Path = SOURCE) -> CodeSize:
    """Count every Python file below a folder."""
    lines: dict[str, int] = {}
    classes: dict[tuple[str, str], CountedClass] = {}
    for path in sorted(source.rglob("*.py")):
        if path.name.endswith("_pb2.py"):
            continue
        text, inside = path.read_text(), path.relative_to(source)
        tree = ast.parse(text)
        lines[str(inside)] = code_lines(text, tree)
        module = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
        for each in classes_of(module, tree):
            classes[module, each.name] = each
    return CodeSize(lines, classes)


def table(size: CodeSize) -> str:
    """The figures in Markdown."""
    rows = ["| package | files | code lines |", "| --- | ---: | ---: |"]
    rows += [f"| `{name}` | {files} | {lines:,} |" for name, (files, lines) in size.by_package().items()]
    rows.append(f"| all | {len(size.lines)} | {sum(size.lines.values()):,} |")
    repeated, large = size.repeated_names(), size.large_classes()
    listed = [
        (f"Public class names in more than one module ({len(repeated)})", [f"`{name}`" for name in repeated]),
        (
            f"Classes of more than {FIELDS_MAX} fields ({len(large)})",
            [f"`{name}` {fields}" for name, fields in large.items()],
        ),
    ]
    for title, items in listed:
        rows += ["", f"{title}: {', '.join(items) or 'none'}."]
    return "\n".join(rows) + "\n"


def main() -> int:
    """Print what `src` holds."""
    size = count()
    sys.stdout.write(json.dumps(size.as_json(), indent=1) + "\n" if "--json" in sys.argv[1:] else table(size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
