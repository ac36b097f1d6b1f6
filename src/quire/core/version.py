"""The version of this program: what `quire.__version__`, the packages and bookies say."""

from typing import Final

VERSION: Final = "0.1.0"
