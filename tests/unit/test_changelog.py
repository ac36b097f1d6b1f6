"""CHANGELOG.md: short, and put together by towncrier out of `changes/`."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import quire

ROOT = Path(__file__).resolve().parents[2]


def towncrier(folder, *arguments):
    command = [sys.executable, "-m", "towncrier", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def project(folder, **changes):
    """The project as far as towncrier looks at it, with these changes."""
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "changes").mkdir()
    for name, text in changes.items():
        (folder / "changes" / f"{name.replace('_', '.')}.md").write_text(text)
    return folder


def test_every_change_is_named_as_one():
    done = towncrier(ROOT, "build", "--draft", "--version", "0")
    assert done.returncode == 0, done.stderr


def test_changes_become_a_section_above_the_last_one(tmp_path):
    project(
        tmp_path, quick_fix="It is quick\nnow.\n", wide_feature="It is wide.", wide_break="No longer narrow."
    )
    done = towncrier(tmp_path, "build", "--yes", "--version", "9.9", "--date", "2030-01-01")
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = (tmp_path / "CHANGELOG.md").read_text().split("## 9.9 (2030-01-01)\n")
    assert before.startswith("# Changelog\n")
    section, _, rest = after.partition(f"\n## {quire.__version__} ")
    assert re.sub(r"\s+", " ", section).strip() == (
        "### No longer as before - No longer narrow. ### New - It is wide. ### Corrected - It is quick now."
    )
    assert rest
    assert not list((tmp_path / "changes").iterdir())


def test_a_change_of_no_known_type_is_refused(tmp_path):
    done = towncrier(project(tmp_path, quick_improvement="Better."), "build", "--draft", "--version", "9.9")
    assert done.returncode == 1
    assert "Invalid news fragment name: quick.improvement.md" in done.stderr


def test_the_first_version_is_described_in_sixty_lines():
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    first = next(section for section in sections if section.startswith("0.1.0 "))
    assert len(first.splitlines()) <= 60
