"""The public names: `quire` has every class that a user meets, and every error that a public method can raise.

Source: ARCHITECTURE.md.
"""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from typing import Any

import pytest

import quire

CLASSES: list[Any] = [
    quire.Client,
    quire.LedgerReader,
    quire.LedgerWriter,
    quire.Log,
    quire.LogWriter,
    quire.UnboundedLedger,
]


def test_every_name_is_there_and_importing_loads_none_of_the_machinery() -> None:
    assert {name for name in quire.__all__ if not hasattr(quire, name)} == set()
    with pytest.raises(AttributeError, match="no attribute 'Logs'"):
        getattr(quire, "Logs")  # noqa: B009 - it is not there
    loaded = "import sys, quire; sys.exit(', '.join({'asyncio', 'pyarrow', 'kazoo', 'sqlite3'} & set(sys.modules)) or 0)"
    subprocess.run([sys.executable, "-c", loaded], check=True)


@pytest.mark.parametrize("public", CLASSES, ids=lambda public: public.__name__)
def test_every_error_that_a_public_method_names_is_a_public_name(public: Any) -> None:
    said = "\n".join(inspect.getdoc(method) or "" for _, method in inspect.getmembers(public))
    assert {name for name in re.findall(r"\b[A-Z]\w+Error\b", said) if not hasattr(quire, name)} == set()


def test_the_blocking_classes_have_the_same_names() -> None:
    assert {*quire.blocking.__all__} - {"Prefetch"} <= {*quire.__all__}


def test_help_of_a_writer_shows_what_users_call() -> None:
    names = [name for name in vars(quire.LogWriter) if not name.startswith("_")]
    assert len(names) <= 16
    assert "drain_ledger" not in pydoc.render_doc(quire.LogWriter)
