"""On a system that lacks what bookies write with, their start says so."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.main import app


@pytest.mark.parametrize("command", ["bookie", "up"])
def test_a_bookie_starts_only_on_linux(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "O_DIRECT")
    words = [command, "--dir", str(tmp_path / "b")]
    words += (
        ["--listen", "0", "--create", "--cluster", f"sqlite:{tmp_path / 'm.db'}"]
        if command == "bookie"
        else []
    )
    done = CliRunner(env={"QUIRE_CLUSTER": None}).invoke(app, words)
    assert done.exit_code == 2
    assert "Bookies run only on Linux; this system, Linux, lacks O_DIRECT" in done.stderr
    assert not (tmp_path / "b").exists()
    assert "Traceback" not in done.output
