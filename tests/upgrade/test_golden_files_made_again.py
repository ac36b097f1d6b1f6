"""The golden files are what the code of revision 9e5fe3a writes: it makes the same ones again."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

from support.golden import FOLDER, unpack
from support.old_programs import ROOT, old_or_skip


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_old_code_makes_the_same_files_again(tmp_path: Path) -> None:
    old_or_skip()
    made = tmp_path / "made"
    subprocess.run(
        [sys.executable, str(ROOT / "tools" / "golden_files.py"), str(made)], check=True, timeout=120
    )
    assert {path.name for path in made.iterdir()} <= {path.name for path in FOLDER.iterdir()}
    frames = "frames.json.gz"
    assert gzip.decompress((made / frames).read_bytes()) == gzip.decompress((FOLDER / frames).read_bytes())
    directories = json.loads((FOLDER / "directories.json").read_text())
    assert json.loads((made / "directories.json").read_text()) == directories
    for name in directories:
        archive = f"directory-{name}.tar.xz"
        again, kept = (
            unpack(made / archive, tmp_path / "again" / name),
            unpack(FOLDER / archive, tmp_path / "kept" / name),
        )
        assert files(again) == files(kept)
    # A cluster has other ids and times each time; what its makers put in is the same.
    one, other = (json.loads((folder / "cluster.json").read_text()) for folder in (made, FOLDER))
    assert [ledger["payloads"] for ledger in one["ledgers"]] == [
        ledger["payloads"] for ledger in other["ledgers"]
    ]
    assert one["log"]["records"] == other["log"]["records"]
