"""Reads the exhibits of tests/museum from their sources, without importing them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUSEUM = ROOT / "tests" / "museum"
GITHUB = "https://github.com/"
HOME = "apache/bookkeeper/"
KINDS = ("incident", "waiting")


@dataclass(frozen=True, slots=True)
class Shown:
    """One exhibit as it stands in the sources.

    Attributes:
        kind: incident, or waiting.
        test: file and function.
        fields: what its author wrote.
    """

    kind: str
    test: str
    fields: dict[str, str]

    @property
    def address(self) -> str:
        """Where the incident is told."""
        ref = self.fields["ref"]
        if ref.startswith("https://"):
            return ref
        return GITHUB + (ref if ref.count("/") > 1 else HOME + ref)

    @property
    def name(self) -> str:
        """What the link says."""
        place, _, number = self.fields["ref"].rpartition("/")
        if place.startswith("https://"):
            return number
        kind = place.rpartition("/")[2]
        elsewhere = "" if place.count("/") == 0 else place.split("/")[0] + " "
        return f"{elsewhere}{'pull request' if kind == 'pull' else 'issue'} {number}"


def exhibits(folder: Path = MUSEUM) -> list[Shown]:
    """Every exhibit, in the order of files and lines."""
    found = []
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = [call for call in node.decorator_list if isinstance(call, ast.Call)]
                name = node.name
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                calls, name = [node.value], ast.unparse(node.targets[0])
            else:
                continue
            found += [
                Shown(call.func.id, f"{path.name}::{name}", _fields(call))
                for call in calls
                if isinstance(call.func, ast.Name) and call.func.id in KINDS
            ]
    return found


def _fields(call: ast.Call) -> dict[str, str]:
    return {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}


def table(kind: str) -> str:
    """The exhibits of a kind as a table for docs/museum.md."""
    if kind == "run":
        rows = [
            "| incident | what went wrong there | our run | the switch, and what it breaks |",
            "| --- | --- | --- | --- |",
        ]
        rows += [
            f"| [{one.name}]({one.address})<br>{one.fields['title']} | {one.fields['happened']} | {one.fields['ours']} "
            f"| {one.fields['switch']} → **{one.fields['violates']}** |"
            for one in exhibits()
            if one.kind == "incident"
        ]
    else:
        rows = ["| incident | what went wrong there | waits for |", "| --- | --- | --- |"]
        rows += [
            f"| [{one.name}]({one.address})<br>{one.fields['title']} | {one.fields['happened']} | {one.fields['room']} |"
            for one in exhibits()
            if one.kind == "waiting"
        ]
    return "\n".join(rows) + "\n"


def summary() -> str:
    """How many there are."""
    found = exhibits()
    runs = sum(one.kind == "incident" for one in found)
    places = len({one.fields["ref"] for one in found if one.kind == "incident"})
    return f"{runs} runs of {places} incidents; {len(found) - runs} incidents wait for a room.\n"
