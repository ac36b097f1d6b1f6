"""Fill the generated regions of the documents from the code and from bench/results.

A region stands between `<!-- generated: KIND ARGS -->` and `<!-- end -->`. With `--check` nothing is written and the
exit status says whether everything is up to date.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "quire"
REGION = re.compile(r"(<!-- generated: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    """Every document that may have regions."""
    return [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def first_sentence(node: ast.AsyncFunctionDef | ast.ClassDef | ast.FunctionDef | ast.Module) -> str:
    """The summary line of a docstring."""
    lines = (ast.get_docstring(node) or "").split("\n\n")[0].split("\n")
    return " ".join(line.strip() for line in lines)


def machine(path: str, *names: str) -> str:
    """A machine's inputs, each with its summary, and where they may come."""
    tree = ast.parse((SOURCE / path).read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    wanted = [node for node in classes if node.name in names or (not names and is_machine(node))]
    parts = []
    for node in wanted:
        rows = [
            f"| `{inner.name}` | {first_sentence(inner)} |"
            for inner in node.body
            if isinstance(inner, ast.FunctionDef) and is_input(inner)
        ]
        parts.append(
            "\n".join([f"## Inputs of `{node.name}`\n", "| input | what it does |", "| --- | --- |", *rows])
        )
    return "\n\n".join(parts) + "\n"


def is_machine(node: ast.ClassDef) -> bool:
    """Whether a class is one of the state machines."""
    return not node.name.startswith("_") and any(
        isinstance(inner, ast.FunctionDef) and inner.name != "__init__" for inner in node.body
    )


def is_input(node: ast.FunctionDef) -> bool:
    """Public methods other than the whole-state check; properties are not inputs."""
    return not node.name.startswith("_") and node.name != "check" and not node.decorator_list


def formats() -> str:
    """The index of formats: pages that name their code file."""
    rows = ["| format | page | code |", "| --- | --- | --- |"]
    for page in sorted((ROOT / "docs" / "formats").glob("*.md")):
        if page.name == "README.md":
            continue
        text = page.read_text()
        title = text.splitlines()[0].removeprefix("# ")
        files = sorted(
            set(re.findall(r"`((?:src/quire/)?(?:wire|storage|metadata|core)/[a-z_/]+\.(?:py|proto))`", text))
        )
        code = ", ".join(f"`{file.removeprefix('src/quire/')}`" for file in files)
        rows.append(f"| {title} | [{page.name}]({page.name}) | {code} |")
    return "\n".join(rows) + "\n"


def decisions() -> str:
    """The list of decisions."""
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    return (
        "\n".join(f"- [{page.read_text().splitlines()[0].removeprefix('# ')}]({page.name})" for page in pages)
        + "\n"
    )


def tests() -> str:
    """How many test functions each ring has, and how many lines."""
    rows = ["| ring | files | test functions |", "| --- | --- | --- |"]
    for ring in sorted(path for path in (ROOT / "tests").iterdir() if path.is_dir()):
        files = sorted(ring.rglob("test_*.py"))
        count = sum(
            len(re.findall(r"^\s*(?:async )?def test_", file.read_text(), re.MULTILINE)) for file in files
        )
        if files:
            rows.append(f"| `{ring.name}` | {len(files)} | {count} |")
    return "\n".join(rows) + "\n"


def bench() -> str:
    """The committed results, with the commands that made them."""
    paths = sorted((ROOT / "bench" / "results").glob("*.json"))
    if not paths:
        return "No results are committed yet: `make bench` makes them.\n"
    rows = ["| claim | ours | Java | ratio (worst pair) | made by |", "| --- | --- | --- | --- | --- |"]
    machines = []
    for path in paths:
        result = json.loads(path.read_text())
        for claim in result["claims"]:
            ours, peer = (f"{claim[side]:,.0f} {claim['unit']}" for side in ("ours", "peer"))
            rows.append(
                f"| {claim['claim']}: {claim['text']} | {ours} | {peer} "
                f"| {claim['ratio']:.2f} ({claim['worst']:.2f}), {len(claim['pairs'])} pairs "
                f"| `{result['script']}`, {result['date']} |"
            )
        host = result["machine"]
        peers = sorted({claim["parameters"].get("peer", "") for claim in result["claims"]})
        machines.append(
            f"`{result['script']}`: {host['cpus']} CPUs ({host['cpu']}), {host['memory_gib']} GiB, "
            f"{host['filesystem']}, Python {host['python']}, {', '.join(peers)}."
        )
    return "\n".join(rows) + "\n\n" + "\n".join(machines) + "\n"


def proof() -> str:
    """The committed figures of the full rounds."""
    paths = sorted((ROOT / "docs" / "proof").glob("*.json"))
    if not paths:
        return "No figures are committed yet: `make proof` makes them.\n"
    rows = ["| what | figures | made |", "| --- | --- | --- |"]
    for path in paths:
        result = json.loads(path.read_text())
        figures = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result["figures"].items())
        rows.append(f"| {result['proof'].replace('_', ' ')} | {figures} | {result['made'][:10]} |")
    return "\n".join(rows) + "\n"


KINDS: dict[str, Callable[..., str]] = {
    "machine": machine,
    "formats": formats,
    "decisions": decisions,
    "tests": tests,
    "bench": bench,
    "proof": proof,
}


UNCHECKED = {"tests"}
"""Regions that every new test would make stale; only writing refreshes them."""


def filled(text: str, *, checking: bool) -> str:
    """The document with its regions made anew."""

    def fill(match: re.Match[str]) -> str:
        kind, *args = match[2].split()
        if checking and kind in UNCHECKED:
            return match[0]
        return match[1] + KINDS[kind](*args) + match[4]

    return REGION.sub(fill, text)


def main() -> int:
    """Write, or check."""
    stale = []
    for path in documents():
        old = path.read_text()
        new = filled(old, checking="--check" in sys.argv)
        if new != old:
            stale.append(path.relative_to(ROOT))
            if "--check" not in sys.argv:
                path.write_text(new)
    for path in stale:
        sys.stdout.write(f"{'stale' if '--check' in sys.argv else 'written'}: {path}\n")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
