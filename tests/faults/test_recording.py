"""README's first commands, typed in an empty home: they print what README and its recording show."""

import subprocess
import sys
from pathlib import Path

import pytest
import recording

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.faults
def test_the_first_minute_is_as_it_is_shown():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/recording.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run 'tools/recording.py'"


def test_readme_shows_the_beginning_of_the_recording():
    shown = recording.words(recording.readme_lines())
    first = [text for text in shown if "$ quire up" in text]
    recorded = recording.words(recording.kept())
    killed = next(number for number, text in enumerate(recorded) if "kill -9" in text)
    assert first == shown[:1]
    assert [text for text in recorded[:killed] if not text.startswith("bookie-2 (")][: len(shown)] == shown


def test_the_same_lines_make_the_same_picture():
    lines = [
        recording.Line(0, "$ quire <up>"),
        recording.Line(1, "x" * 250),
        recording.Line(0, "done & gone"),
    ]
    assert recording.svg(lines) == recording.svg(lines)
    assert len(recording.broken(lines)) == 5
