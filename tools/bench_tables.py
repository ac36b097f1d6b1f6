"""The tables of bench/results: every claim for docs/performance.md, and some of them in words for README.

Codes of claims stand in docs/performance.md alone. Words are made of a claim's own figures, so that none is ahead of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAIRS_MIN = 5
IN_WORDS = {
    "P18-tasks-5,000": "5,000 tasks that each append 100 B again and again, one append at a time: {ours}, {times}",
    "P11-tuned": "A reader that follows a writer of 500 records a second: {ours} from append to delivery, {times}",
    "P4-10KB": "Entries of 10 KB, 1,000 of them outstanding: {ours}, {times}",
    "P6-tuned": "One append of 1 KB after another: {ours} each at the median, {times}",
    "P18-10,000": "Appends of 100 B to 10,000 ledgers in turn: {ours}, {times}",
    "P12-tuned": "The worst, the whole life of a ledger (create, append, close, open), one after another, with ZooKeeper: {ours}, {times}",
}
"""What README says, each against Java tuned; the claim whose ratio is the lowest of all peers' stands last."""

WORDS = {"entries/s": "a second", "cycles/s": "ledgers a second"}

Claims = Sequence[dict[str, Any]]


def results() -> list[dict[str, Any]]:
    """Every claim of bench/results, each with the script that made it, in the order of their numbers."""
    claims = []
    for path in sorted((ROOT / "bench" / "results").glob("*.json")):
        result = json.loads(path.read_text())
        claims += [{**claim, "script": result["script"]} for claim in result["claims"]]
    return sorted(
        claims, key=lambda claim: (claim["claim"][0], *map(int, re.findall(r"\d+", claim["claim"])))
    )


def figure(value: float, unit: str) -> str:
    """A figure with its unit, as many digits as it deserves."""
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def table() -> str:
    """The committed results: every claim, its bar and whether it holds."""
    claims = results()
    if not claims:
        return "No results are committed yet: `make bench` makes them.\n"
    hosts = machines(claims)
    rows = [
        "| claim | bar | ours | peer | ratio | worst pair | | made by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for claim in claims:
        rows.append(
            f"| **{claim['claim']}** {claim['text']} | {claim['bar']:g} | {figure(claim['ours'], claim['unit'])} "
            f"| {figure(claim['peer'], claim['unit'])} ({', '.join(kinds(claim))}) "
            f"| {claim['ratio']:.2f} | {claim['worst']:.2f} | {'holds' if claim['holds'] else '**MISSED**'} "
            f"| `{claim['script']}`, {pairs_of(claim)}, {claim['date']}, `{claim['machine']['revision']}`, "
            f"machine {hosts.index(host(claim)) + 1} |"
        )
    named = [f"{number}. {each}" for number, each in enumerate(hosts, 1)]
    peers = {claim["parameters"]["peer"] for claim in claims if claim["parameters"].get("peer")}
    said = ["Machines:", "", *named, "", f"Peers: {'; '.join(sorted(peers))}."]
    return "\n".join([*rows, "", verdict(claims), "", *said]) + "\n"


def kinds(claim: dict[str, Any]) -> list[str]:
    """Which settings of the peer the pairs took, each with `tuned` where it was."""
    tuned = str(claim["parameters"].get("peer", "")).endswith(", tuned")
    found = sorted({pair["peer_kind"] for pair in claim["pairs"]})
    return [f"{kind} tuned" if tuned and "tuned" not in kind else kind for kind in found]


def pairs_of(claim: dict[str, Any]) -> str:
    """How many pairs, and whether that is enough to count."""
    count = len(claim["pairs"])
    return f"{count} pairs" if count >= PAIRS_MIN else f"*only {count} of {PAIRS_MIN} pairs*"


def in_words() -> str:
    """Some claims as sentences, the worst of all last, and in one line where they were measured.

    Raises:
        ValueError: a claim that is not named has a lower ratio against a tuned peer than the last one.
    """
    claims = results()
    known = {claim["claim"]: claim for claim in claims}
    chosen = [known[name] for name in IN_WORDS]
    lowest = min((claim for claim in claims if is_lone(claim)), key=lambda claim: claim["ratio"])
    if lowest["ratio"] < chosen[-1]["ratio"]:
        raise ValueError(f"the worst figure is that of {lowest['claim']} now: README must say it")
    lines = []
    for claim in chosen:
        assert all("tuned" in kind for kind in kinds(claim)), (
            f"{claim['claim']}: against a peer that is not tuned"
        )
        unit = claim["unit"]
        ours = (
            figure(claim["ours"] / 1e3, "ms")
            if unit == "us"
            else figure(claim["ours"], WORDS.get(unit, unit))
        )
        lines.append(f"- {IN_WORDS[claim['claim']].format(ours=ours, times=times(claim['ratio']))}.")
    return "\n".join([*lines, "", measured(chosen)]) + "\n"


def is_lone(claim: dict[str, Any]) -> bool:
    """Whether a claim compares with Java what users get, not a setting that is there for the comparison."""
    return "Java" in "".join(kinds(claim)) and "-frames-" not in claim["claim"]


def times(ratio: float) -> str:
    """How far ahead or behind."""
    return f"{ratio:.1f} times as fast" if ratio >= 1 else f"**{1 / ratio:.1f} times slower**"


def measured(claims: Claims) -> str:
    """Machines, versions and dates of some claims in one line."""
    facts = [claim["machine"] for claim in claims]
    cpus = " or ".join(sorted({short(fact["cpu"]) for fact in facts}))
    systems = " and ".join(sorted({re.findall(r"\d+\.\d+", fact["system"])[0] for fact in facts}))
    pythons = " and ".join(sorted({re.findall(r"\d+\.\d+", fact["python"])[0] for fact in facts}))
    peer = min(claim["parameters"]["peer"].removesuffix(", tuned") for claim in claims)
    dates = sorted(claim["date"] for claim in claims)
    first = facts[0]
    return (
        f"Measured from {dates[0]} to {dates[-1]} beside {peer}, tuned: {first['cpus']} CPUs ({cpus}), "
        f"{first['memory_gib']:.0f} GiB, {first['filesystem']}, Linux {systems}, Python {pythons}."
    )


def short(cpu: str) -> str:
    """A processor's name without its marks."""
    return cpu.replace("(R)", "").removesuffix(" Processor")


def verdict(claims: Claims) -> str:
    """How many hold, and which do not."""
    missed = [claim["claim"] for claim in claims if not claim["holds"]]
    named = f"; missed: {', '.join(missed)}" if missed else ""
    return f"{len(claims) - len(missed)} of {len(claims)} hold{named}."


def machines(claims: Claims) -> list[str]:
    """Every kind of machine that figures come from, once."""
    return sorted({host(claim) for claim in claims})


def host(claim: dict[str, Any]) -> str:
    """Where a claim was measured."""
    fact = claim["machine"]
    return (
        f"{fact['cpus']} CPUs ({fact['cpu']}), {fact['memory_gib']} GiB, {fact['filesystem']}, "
        f"{fact['system']}, Python {fact['python']}."
    )


def extra() -> str:
    """Figures that were measured beside the claims and have no bar."""
    known = {"claim", "text", "unit", "ours", "peer", "ratio", "worst", "bar", "holds", "pairs", "parameters"}
    known |= {"date", "machine", "plots", "script"}
    rows = ["| beside | figures |", "| --- | --- |"]
    for claim in results():
        for name, value in claim.items():
            if name not in known:
                said = (
                    ", ".join(f"{key} {item}" for key, item in value.items())
                    if isinstance(value, dict)
                    else value
                )
                rows.append(f"| {claim['claim']} | {name.replace('_', ' ')}: {said} |")
    return "\n".join(rows) + "\n"
