"""Hold the figures of `code_size.py` and `trace_paths.py` against `limits.json`: none may rise.

python tools/limits.py                 # the figures, each beside its limit
python tools/limits.py --lower         # write the limits down to the figures
python tools/limits.py --keep before   # keep the figures as docs/sizes/before.json, for docs/sizes.md
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import code_size
import trace_paths

ROOT: Final = Path(__file__).resolve().parent.parent
LIMITS: Final = ROOT / "tools" / "limits.json"
KEPT: Final = ROOT / "docs" / "sizes"
LIMITED: Final = ("files", "moves", "moves_and_returns")
"""Of each way. Functions are only shown: one that is cut in two in its file makes the way no longer."""

CURE: Final = {
    "repeated_names": "give one of the classes another name, or make them one",
    "large_classes": "give a part of the class a state of its own, held as one field",
}


Counts = dict[str, dict[str, int]]
"""What `Walk.counts` says of each way."""


def figures(size: code_size.CodeSize, paths: Counts) -> dict[str, int]:
    """Every figure that has a limit, by its name."""
    found = {
        "repeated_names": len(size.repeated_names()),
        "large_classes": len(size.large_classes()),
    }
    for way, counts in paths.items():
        found |= {f"{way}: {name}": counts[name] for name in LIMITED}
    return found


def limits() -> dict[str, int]:
    """The limits as committed."""
    loaded: dict[str, int] = json.loads(LIMITS.read_text())
    return loaded


def risen(now: dict[str, int], allowed: dict[str, int]) -> list[str]:
    """A sentence for each figure above its limit, and for each that has none."""
    problems = []
    for name, value in now.items():
        if name not in allowed:
            problems.append(
                f"{name} is {value} and has no limit: `python tools/limits.py --lower` gives it one"
            )
        elif value > allowed[name]:
            way = name.partition(":")[0]
            cure = CURE.get(name, f"`python tools/trace_paths.py '{way}'` shows every step; leave one out")
            problems.append(f"{name} rose from {allowed[name]} to {value}: {cure}")
    return problems


def lower(now: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """The limits, none above today's figure; of a figure without a limit, the figure."""
    return {name: min(value, allowed.get(name, value)) for name, value in now.items()}


def keep(name: str, size: code_size.CodeSize, paths: Counts) -> None:
    """Write all figures into docs/sizes."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 - git
    facts: dict[str, Any] = {"commit": commit, "paths": paths, "code": size.as_json()}
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")


def main() -> int:
    """Compare, or write."""
    size = code_size.count()
    paths = {way: walk.counts() for way, walk in trace_paths.trace().items()}
    now, allowed = figures(size, paths), limits() if LIMITS.exists() else {}
    if "--lower" in sys.argv[1:]:
        LIMITS.write_text(json.dumps(lower(now, allowed), indent=1) + "\n")
        return 0
    if "--keep" in sys.argv[1:]:
        keep(sys.argv[-1], size, paths)
        return 0
    for name, value in now.items():
        sys.stdout.write(f"{name}: {value} (limit {allowed.get(name, 'none')})\n")
    problems = risen(now, allowed)
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
