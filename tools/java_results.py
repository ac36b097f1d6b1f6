"""Tables of docs/moving.md out of the figures that tests beside Java keep in docs/proof."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

PROOF = Path(__file__).resolve().parents[1] / "docs" / "proof"
VERSIONS = ("4.9.2", "4.11.1", "4.14.5", "4.16.6", "4.17.3", "4.18.0")


def versions() -> str:
    """What passed between us and each version of BookKeeper, from the last full round."""
    columns = ("java bookies, v2", "java bookies, v3", "our bookies, v2", "our bookies, v3")
    lines = [
        "| BookKeeper | Java bookies, V2 | Java bookies, V3 | our bookies, V2 | our bookies, V3 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in VERSIONS:
        figures = json.loads((PROOF / f"java_version_{name}.json").read_text())["figures"]
        lines.append(f"| {name} | " + " | ".join(figures[column] for column in columns) + " |")
    return "\n".join(lines) + "\n"


def busy() -> str:
    """How long our client took for many entries at once on Java bookies of each setting, from the last full rounds."""
    loads = [
        f"{size}, {clients}"
        for size in ("60,000 of 100 B", "300,000 of 20 B", "400 of 64 KB")
        for clients in ("1 client", "3 clients")
    ]
    lines = [f"| setting | {' | '.join(loads)} |", "| --- " * (1 + len(loads)) + "|"]
    for setting in ("default", "dbledgerstorage", "direct_io", "journal_unsynced", "limit_1000", "limit_8"):
        for protocol in ("v2", "v3"):
            path = PROOF / f"java_busy_{setting}_{protocol}.json"
            found = json.loads(path.read_text())["figures"] if path.exists() else {}
            cells = [_rounds(found[load]) if load in found else "not run" for load in loads]
            lines.append(f"| {setting.replace('_', ' ')}, {protocol.upper()} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _rounds(seconds: Sequence[float]) -> str:
    """How many rounds, and the shortest and longest of them."""
    return f"{len(seconds)}: {min(seconds):g} to {max(seconds):g} s"


def many_ledgers() -> str:
    """What many ledgers cost that Java wrote to Java bookies, from the last full round."""
    lines = [
        "| ledgers | step | seconds | requests to ZooKeeper | requests to bookies |",
        "| --- | --- | --- | --- | --- |",
    ]
    path = PROOF / "java_many_ledgers.json"
    if not path.exists():
        return "\n".join([*lines, "| not run | | | | |"]) + "\n"
    figures = json.loads(path.read_text())["figures"]
    for protocol in ("v2", "v3"):
        for step in ("listed", "opened", "verified"):
            name = f"{protocol} {step}"
            asked = " | ".join(f"{figures[f'{name}, requests to {to}']:,}" for to in ("ZooKeeper", "bookies"))
            seconds = figures[f"{name}, seconds"]
            lines.append(f"| {figures['ledgers']:,} | {step}, {protocol.upper()} | {seconds:g} | {asked} |")
    return "\n".join(lines) + "\n"


def classes() -> str:
    """Which of BookKeeper's own tests passed on our bookies, and why some cannot, from the last full round."""
    found = {
        path.stem.removeprefix("java_class_"): json.loads(path.read_text())
        for path in sorted((PROOF).glob("java_class_*.json"))
    }
    lines = [
        "| class | passed | different on purpose | not meant for these keys |",
        "| --- | --- | --- | --- |",
    ]
    for name, result in found.items():
        figures = result["figures"]
        lines.append(f"| {name} | {figures['passed']} | {figures['different']} | {figures['not meant']} |")
    reasons = {method: why for result in found.values() for method, why in result["rows"].items()}
    if reasons:
        lines += ["", "| test | why it cannot pass |", "| --- | --- |"]
        lines += [f"| `{method}` | {why} |" for method, why in sorted(reasons.items())]
    return "\n".join(lines) + "\n"
