"""A step of the demo that counts nothing says how long it has been going, on a terminal and elsewhere."""

from __future__ import annotations

import contextlib
import os
import pty
import time
from itertools import pairwise
from threading import Event

import pytest

from quire.cli.console.output import Output
from quire.cli.demo import narrator


class Heard(Output):
    """Keeps what is noted, and says when there are so many notes."""

    def __init__(self, wanted: int) -> None:
        super().__init__(as_json=False)
        self.notes: list[str] = []
        self.at: list[float] = []
        self.wanted = wanted
        self.enough = Event()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.at.append(time.monotonic())
        if len(self.notes) == self.wanted:
            self.enough.set()


def test_without_a_terminal_the_lines_come_further_and_further_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrator, "PLAIN_INTERVAL_S", 0.01)
    out = Heard(wanted=4)
    with narrator.Narrator(out).busy("reading"):
        assert out.enough.wait(30)
    assert all(note.startswith("   reading: ") for note in out.notes)
    gaps = [after - before for before, after in pairwise(out.at)]
    assert gaps[2] > 2 * 0.01  # a wait is as long as all before it together


def everything_shown(main: int) -> str:
    """What came to a pseudo-terminal whose other side is closed: a read gives a part of it, and fails at its end."""
    shown = bytearray()
    with contextlib.suppress(OSError):
        while part := os.read(main, 65536):
            shown += part
    return shown.decode()


def test_on_a_terminal_a_clock_runs_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    main, side = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    out = Heard(wanted=1)
    with os.fdopen(side, "w") as terminal:
        monkeypatch.setattr("sys.stderr", terminal)
        with narrator.Narrator(out).busy("reading"):
            pass
    shown = everything_shown(main)
    os.close(main)
    assert "reading" in shown and "0:00:00" in shown
    assert "\x1b[2K" in shown  # the line is erased at the end
    assert out.notes == []
