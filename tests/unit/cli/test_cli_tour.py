"""docs/cli-tour.md has every command, and shows what the commands answer."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_tour import replaced
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


@pytest.mark.parametrize(
    "line",
    [
        "A bookie may be away for 10m (600 s).",
        "Log orders: 4 records, 34 B, at offsets 0..3.",
        "orders  0             4           4        242 B  2        2",
        "Plan: 3 ledgers of 5 to repair, 17 entries to copy, about 12.5 MiB, 2m 5s at 50 MB/s",
        "The metadata store of etcd://127.0.0.1:1/ledgers did not respond in 3 s: check that it runs.",
        '{"ledger_id": 7, "entry_id": 1, "records_per_s": null, "lost_delay_s": 600}',
        "waiting for ZooKeeper at 127.0.0.1:1, which has not responded for 1 s (it fails after 15 s)",
        "Log orders (1,200 records/s).",
    ],
)
def test_a_figure_that_is_determined_is_recorded_as_it_was_printed(line: str) -> None:
    assert replaced(line) == line


def test_what_the_machine_or_chance_determines_is_replaced() -> None:
    bookie = "bookie-1.{}  127.0.0.1:{}  up  0.1.0  {}  3 ledgers in 1 segment  64.0 MiB  {} GiB of {} GiB  native 2  -"
    here = bookie.format("uj9ir", 46081, "8m 14s", "65.2", "252.0")
    there = bookie.format("k3x9q", 40001, "8s    ", "50.0", "100.0")
    assert replaced(here) == replaced(there) == there
    bench = "{} entries of 100 B in {} s, up to 5,000 in flight: {} entries/s, {}/s."
    assert replaced(bench.format("35,000", "1.2", "30,165", "2.9 MiB")) == replaced(
        bench.format("9,000", "0.3", "7,165", "900.1 KiB")
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_page_shows_what_the_commands_answer() -> None:
    tool = [sys.executable, ROOT / "tools" / "cli_tour.py", "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
