"""The version of this program: what `quire.__version__`, the packages and bookies say; and that of its formats."""

from typing import Final

VERSION: Final = "0.1.0"
FORMAT: Final = 2
"""The one version of Quire's own formats and frames: in segments' headers, metadata stores and hellos.

Until a release is published they change in place: this number rises, and nothing reads or speaks a lower one.
"""
UNRELEASED: Final = "an unreleased Quire; use a revision before 7eed60f5 for it"
"""Who wrote what has a lower version, for sentences that refuse it."""
