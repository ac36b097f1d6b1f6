"""Fill the generated regions of the documents from the code and from bench/results, and draw the pictures of these.

A region stands between `<!-- generated: KIND ARGS -->` and `<!-- end -->`. With `--check` nothing is written and the
exit status says whether everything is up to date.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench_tables
import checked_where
import exhibits
import field_tables
import gallery
import java_results
import overview
import plots
import sentences

from quire.spark.options import Use
from quire.spark.read_options import READ_OPTIONS
from quire.spark.write_options import WRITE_OPTIONS

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "quire"
PLOTS = ROOT / "docs" / "plots"
STREAM = PLOTS / "spark-guide.json"
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


def states(module: str, name: str) -> str:
    """A machine's states as a diagram, and the inputs that leave it in its state, from its table."""
    table = getattr(importlib.import_module(f"quire.{module.removesuffix('.py').replace('/', '.')}"), name)
    first = next(iter(table.states)).value
    edges: dict[tuple[str, str], list[str]] = {}
    for given, old, new in table.edges():
        edges.setdefault((old.value, new.value), []).append(given)
    moves = [f"    {old} --> {new}: {', '.join(names)}" for (old, new), names in edges.items() if old != new]
    stays = [f"`{old}`: {', '.join(names)}" for (old, new), names in edges.items() if old == new]
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}", *moves, "```"]
    if stays:
        lines += ["", f"Inputs that act and may leave it where it is: {'; '.join(stays)}."]
    return "\n".join(lines) + "\n"


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
            set(
                re.findall(
                    r"`((?:src/quire/)?(?:wire|storage|metadata|core)/[a-z_/]+\.(?:py|proto)"
                    r"|src/quire_testing/history/[a-z_/]+\.py)`",
                    text,
                )
            )
        )
        code = ", ".join(f"`{file.removeprefix('src/').removeprefix('quire/')}`" for file in files)
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


def bench_plots() -> str:
    """The pictures, one after another."""
    made = plots.pictures(bench_tables.results())
    return "\n\n".join(f"![{picture.text}](plots/{picture.name}.svg)" for picture in made) + "\n"


def proof() -> str:
    """The committed figures of the full rounds."""
    paths = sorted((ROOT / "docs" / "proof").glob("*.json"))
    if not paths:
        return "No figures are committed yet: `make full` makes them.\n"
    rows = ["| what | figures | made |", "| --- | --- | --- |"]
    for path in paths:
        result = json.loads(path.read_text())
        figures = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result["figures"].items())
        rows.append(f"| {result['proof'].replace('_', ' ')} | {figures} | {result['made'][:10]} |")
    return "\n".join(rows) + "\n"


def meanings() -> dict[str, str]:
    """What each option of the Spark format means: the text below its declaration in the code."""
    found = {}
    for name in ("read_options", "write_options"):
        module = ast.parse((SOURCE / "spark" / f"{name}.py").read_text())
        for body in (module.body, *(each.body for each in module.body if isinstance(each, ast.ClassDef))):
            for declared, below in itertools.pairwise(body):
                call = getattr(declared, "value", None)
                if isinstance(call, ast.Call) and isinstance(below, ast.Expr):
                    for option in [str(each.value) for each in call.args if isinstance(each, ast.Constant)]:
                        found[option] = " ".join(ast.literal_eval(below.value).split())
    return found


def spark_options(use: str) -> str:
    """The options of the Spark format for one use, `read` or `write`."""
    wanted = {"read": Use.READ, "write": Use.WRITE}[use]
    rows = {
        Use.READ: ["| option | default | batch | stream | meaning |", "| --- | --- | --- | --- | --- |"],
        Use.WRITE: ["| option | default | meaning |", "| --- | --- | --- |"],
    }[wanted]
    meaning = meanings()
    for option in (*READ_OPTIONS, *WRITE_OPTIONS):
        if not option.use & wanted:
            continue
        default = option.default or option.otherwise
        if default and not default.startswith("`"):
            default = f"`{default}`"
        uses = ["●" if option.use & each else "" for each in (Use.BATCH, Use.STREAM) if wanted is Use.READ]
        rows.append("| " + " | ".join([f"`{option.name}`", default, *uses, meaning[option.name]]) + " |")
    return "\n".join(rows) + "\n"


def committed(proof: str) -> dict[str, Any] | None:
    """The committed figures of one full round; None while there are none."""
    path = ROOT / "docs" / "proof" / f"{proof}.json"
    return json.loads(path.read_text()) if path.exists() else None


def mutation_score() -> str:
    """What the walks of the machines needed to find each fix that was taken out."""
    result = committed("mutation_score_of_walks")
    if result is None:
        return "No figures are committed yet: `make full` makes them.\n"
    figures = result["figures"]
    rows = [
        f"{figures['found']} of {figures['mutants']} within {figures['seconds_each']:.0f} s of a core each:\n",
        "| fix taken out | found | walks | seconds of a core | mix | invariant |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for mutant, row in result["rows"].items():
        seed = f"seed {row['seed']}" if row["found"] else "no"
        rows.append(
            f"| {mutant} | {seed} | {row['walks']:,} | {row['cpu_seconds']} "
            f"| {row.get('mix', '')} | {row.get('invariant', '')} |"
        )
    return "\n".join(rows) + "\n"


def sink_kills() -> str:
    """How often each process was killed at each step of the sink, and what Kafka's sink did beside it."""
    lines = []
    if result := committed("spark_exactly_once"):
        victims = list(dict.fromkeys(row["victim"] for row in result["rows"]))
        table: dict[tuple[str, str], dict[str, int]] = {}
        for row in result["rows"]:
            table.setdefault((row["phase"], row["step"]), {})[row["victim"]] = row["kills"]
        figures = result["figures"]
        said = (
            f"{figures['seeds']:,} rounds with {figures['kills']:,} kills at commit `{result['commit']}`: "
            f"{figures['duplicates']} rows twice, {figures['missing']} missing, {figures['disordered']} rounds out of "
            "order. How often a process was killed at a step:\n"
        )
        lines += [
            said,
            f"| phase, step | {' | '.join(victims)} |",
            f"| --- |{' --- |' * len(victims)}",
        ]
        for (phase, step), row in sorted(table.items()):
            lines.append(f"| {phase}, `{step}` | {' | '.join(str(row.get(each, '')) for each in victims)} |")
    if result := committed("sinks_beside_each_other"):
        lines += ["", "| sink | what happened | rows twice | rows missing |", "| --- | --- | --- | --- |"]
        for row in result["rows"]:
            lines.append(f"| {row['sink']} | {row['what']} | {row['duplicates']} | {row['missing']} |")
    return "\n".join(lines or ["No figures are committed yet: `make full` makes them."]) + "\n"


def stream_figures() -> str:
    """What take-overs and entries of streams cost in each mode, beside ordinary ledgers."""
    modes = {mode: {what: (cell, bar) for what, cell, bar in figures_of(mode)} for mode in STREAM_MODES}
    lines = [f"| what | {' | '.join(modes)} | bar |", f"| --- |{' --- |' * len(modes)} --- |"]
    for what in dict.fromkeys(what for found in modes.values() for what in found):
        cells = [found.get(what, ("", "")) for found in modes.values()]
        lines.append(f"| {what} | {' | '.join(cell for cell, _ in cells)} | {max(bar for _, bar in cells)} |")
    return "\n".join(lines) + "\n"


STREAM_MODES = ("identifiers", "fencing")


def figures_of(mode: str) -> Iterator[tuple[str, str, str]]:
    """Of streams of one mode: what was measured, the figure, its bar."""
    bench = committed(f"streams_beside_ledgers_{mode}")
    for row in bench["rows"] if bench else ():
        figure, bar = f"{row['stream']:g} {row['unit']}", f"{row['bar']:g}"
        if "ratio" in row:
            low, high = row["interval"]
            yield row["what"], f"{figure}, {row['ratio']:.2f} times a ledger's ({low:.2f} to {high:.2f})", bar
        else:
            yield row["what"], f"{figure}, at most {row['highest']:g}", f"{bar} {row['unit']}"
    waits = " after its return" if mode == "fencing" else ""
    for name, what, after, bar in (("with_a", "a spare", "", ""), ("without_a", "no spare", waits, "1 s")):
        proof = f"{mode}_take_over_{name}_spare"
        if result := committed(proof):
            middle, most = (result["figures"][each] * 1e3 for each in ("median_s", "longest_s"))
            said = f"[{middle:.0f} ms, at most {most:.0f}{after}](../proof/{proof}.json)"
            yield f"take-overs with one of three bookies stopped, {what}", said, bar
    proof = f"{'stream' if mode == 'identifiers' else mode}_take_overs_in_namespaces"
    if result := committed(proof):
        count, entries, known = (
            f"{result['figures'][each]:,}" for each in ("take_overs", "entries", "resolved")
        )
        said = f"[{count}, {entries} entries, {known} outcomes resolved](../proof/{proof}.json)"
        yield (
            "take-overs between processes that are killed, stopped and cut off, each as it should be",
            said,
            "",
        )


def sizes(part: str) -> str:
    """The kept figures of the code: `paths`, `packages` or `names`, a column for each time they were kept."""
    kept = {
        path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "sizes").glob("*.json"))
    }
    kept = dict(sorted(kept.items(), key=lambda item: item[0] != "before"))
    titles = [f"{name} (`{facts['commit']}`)" for name, facts in kept.items()]
    columns: list[dict[str, int]] = []
    for facts in kept.values():
        code = facts["code"]
        if part == "paths":
            figures = {
                f"{way}: {name.replace('_', ' ')}": count
                for way, counts in facts["paths"].items()
                for name, count in counts.items()
            }
        elif part == "packages":
            figures = {f"`{name}`": package["lines"] for name, package in code["packages"].items()}
            figures |= {"all": code["lines"], "files": code["files"]}
        else:
            figures = {
                "public class names in more than one module": len(code["repeated_names"]),
                "classes of more than 20 fields": len(code["large_classes"]),
            }
        columns.append(figures)
    totals = ("all", "files")
    names = list(dict.fromkeys(name for figures in columns for name in figures if name not in totals))
    if part == "packages":
        names = [*sorted(names), *totals]
    cells = {name: [f"{each[name]:,}" if name in each else "" for each in columns] for name in names}
    lines = [f"| | {' | '.join(titles)} |", f"| --- |{' ---: |' * len(titles)}"]
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in cells.items()]
    return "\n".join(lines) + "\n"


KINDS: dict[str, Callable[..., str]] = {
    "spark_options": spark_options,
    "machine": machine,
    "states": states,
    "formats": formats,
    "fields": field_tables.fields,
    "decisions": decisions,
    "tests": tests,
    "bench": bench_tables.table,
    "bench_words": bench_tables.in_words,
    "bench_extra": bench_tables.extra,
    "bench_plots": bench_plots,
    "proof": proof,
    "mutation_score": mutation_score,
    "sink_kills": sink_kills,
    "stream_figures": stream_figures,
    "java_versions": java_results.versions,
    "java_classes": java_results.classes,
    "java_busy": java_results.busy,
    "java_many_ledgers": java_results.many_ledgers,
    "museum": exhibits.table,
    "museum_summary": exhibits.summary,
    "counterexamples": gallery.table,
    "pictures": gallery.pictures,
    "invariants": gallery.invariants,
    "explored": gallery.explored,
    "sizes": sizes,
    "checked": checked_where.table,
    "sentences": sentences.table,
}


UNCHECKED = {"tests", "checked"}
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
    checking = "--check" in sys.argv
    pictures = plots.pictures(bench_tables.results()) + plots.pictures_of_stream(
        json.loads(STREAM.read_text())
    )
    changed = plots.stale(pictures, PLOTS) if checking else plots.write_all(pictures, PLOTS)
    examples = gallery.drawn()
    changed += gallery.stale(examples) if checking else gallery.write_all(examples)
    changed += overview.stale() if checking else overview.write_all()
    for path in documents():
        old = path.read_text()
        new = filled(old, checking=checking)
        if new != old:
            changed.append(path)
            if not checking:
                path.write_text(new)
    for path in changed:
        sys.stdout.write(f"{'stale' if checking else 'written'}: {path.relative_to(ROOT)}\n")
    return int(checking and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
