"""The sentences of docs/upgrading.md: what a test saw must stand there word for word."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "upgrading.md"
_BLOCK = re.compile(r"^```text\n(.*?)^```", re.M | re.S)
_PLACEHOLDERS = {"DIR": r"\S+", "FILE": r"\S+", "HOSTS": r"\S+", "ROOT": r"\S+", "BOOKIES": r".+", "ID": "[0-9a-f-]{36}", "N": "[0-9a-f]+"}  # fmt: skip
_WORD = re.compile(r"\b(" + "|".join(_PLACEHOLDERS) + r")\b")


def sentences() -> list[str]:
    """Every line of the page's blocks of text, as people read it."""
    return [line for block in _BLOCK.findall(PAGE.read_text()) for line in block.splitlines() if line]


def _pattern(sentence: str) -> re.Pattern[str]:
    parts = _WORD.split(sentence)
    return re.compile(
        "".join(re.escape(part) if at % 2 == 0 else _PLACEHOLDERS[part] for at, part in enumerate(parts))
    )


def documented(said: str) -> str:
    """The page's sentence that a program has said.

    Raises:
        AssertionError: the page does not have it, or it is more than one line.
    """
    found = [sentence for sentence in sentences() if _pattern(sentence).fullmatch(said.strip())]
    assert found, f"docs/upgrading.md does not say:\n{said}"
    return found[0]
