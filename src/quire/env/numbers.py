"""Whole numbers as people write and paste them: digits alone, or with the separators that Quire prints (`1,180`)."""

from __future__ import annotations

import re
from typing import Final

_WHOLE: Final = re.compile(r"[+-]?([0-9]+|[0-9]{1,3}(,[0-9]{3})+)")
_LONGEST: Final = 40
"""A longer text is no number that a user means, and would take long to read."""


def number_of(text: str) -> int | None:
    """The whole number that a text is; None if it is none, or if its separators do not stand before each three digits."""
    text = text.strip()
    return int(text.replace(",", "")) if len(text) <= _LONGEST and _WHOLE.fullmatch(text) else None
