"""docs/cli-tour.md has every command, and shows what the commands answer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tour_script import STEPS, Step

from support.commands import every_command

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "cli-tour.md"


def test_the_tour_has_every_command_and_the_page_every_line_of_it() -> None:
    lines = [step.line for step in STEPS if isinstance(step, Step)]
    shown = re.findall(r"^\$ (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert shown == lines, "tools/cli_tour.py makes the page anew"
    missing = [
        words for words in every_command() if not any(f"quire {' '.join(words)}" in line for line in lines)
    ]
    assert not missing, "each new command gets a line in tools/tour_script.py"


def test_the_page_shows_no_traceback_and_no_path_of_the_machine_that_made_it() -> None:
    text = PAGE.read_text("utf-8")
    assert "Traceback" not in text
    assert set(re.findall(r"/tmp/\w+", text)) <= {"/tmp/quire"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_shows_what_the_commands_answer() -> None:
    tool = [sys.executable, ROOT / "tools" / "cli_tour.py", "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
