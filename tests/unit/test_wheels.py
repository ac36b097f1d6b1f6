"""The wheel of `quire-log` has no room of `quire_testing`, runs without it, and says what to install where it is wanted."""

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import quire as quire_package
from quire.distribution import NAME
from quire.distribution import TESTING as TESTING_NAME
from support.wheels import built

ROOT = Path(__file__).resolve().parents[2]
TESTING = ROOT / "src" / "quire_testing"
INSTALLED = sysconfig.get_paths()["purelib"]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    """The wheel of `quire`, unpacked."""
    folder = tmp_path_factory.mktemp("quire")
    with zipfile.ZipFile(built(ROOT, folder)) as wheel:
        wheel.extractall(folder / "unpacked")
    return folder / "unpacked"


def quire(runtime, *arguments):
    """The command line of the unpacked wheel. `-S`: the editable install of this clone is not on its path."""
    return subprocess.run(
        [sys.executable, "-S", "-m", "quire", *arguments],
        env=os.environ | {"PYTHONPATH": f"{runtime}{os.pathsep}{INSTALLED}"},
        cwd=runtime,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_runtime_wheel_has_no_room_of_testing(runtime):
    assert {path.name for path in runtime.iterdir() if path.suffix != ".dist-info"} == {
        "quire",
        "pyspark_quire",
    }
    assert (runtime / "quire" / "wire" / "proto" / "quire_log_pb2.py").is_file()
    assert len(list(runtime.glob("*.dist-info/licenses/LICENSE"))) == 1


def test_the_wheel_of_testing_has_every_room(tmp_path):
    with zipfile.ZipFile(built(TESTING, tmp_path)) as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("quire_testing/")}
        licences = [wheel.read(name) for name in wheel.namelist() if name.endswith("/licenses/LICENSE")]
    assert licences == [(ROOT / "LICENSE").read_bytes()]
    here = {str(path.relative_to(TESTING.parent)) for path in TESTING.rglob("*.py")}
    assert packed == here | {"quire_testing/py.typed"}


def test_both_have_one_version():
    ours, testing = (
        tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, TESTING)
    )
    assert ours["name"] == NAME
    assert testing["version"] == quire_package.__version__
    assert testing["dependencies"] == [f"{NAME}=={testing['version']}"]
    assert testing["requires-python"] == ours["requires-python"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["check"],
        ["check", "--log", "--clients", "2"],
        ["simulate", "--seed", "7"],
        ["verify-history", "history.jsonl"],
    ],
    ids=" ".join,
)
def test_a_command_of_testing_says_what_to_install(runtime, arguments):
    done = quire(runtime, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1
    assert f"`quire {arguments[0]}` is in the package {TESTING_NAME}" in done.stderr
    assert (
        f"pip install {TESTING_NAME.replace('-', '_')}-{quire_package.__version__}-py3-none-any.whl"
        in done.stderr
    )  # no installer was here


def test_a_recorded_load_says_it_before_anything_is_asked_of_the_cluster(runtime, tmp_path):
    cluster = ["--cluster", f"sqlite:{tmp_path}/none.db"]
    done = quire(runtime, "bench", "append", *cluster, "--history", str(tmp_path / "history.jsonl"))
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"`quire bench --history` is in the package {TESTING_NAME}" in done.stderr


def test_the_help_of_the_wheel_lists_every_command(runtime):
    done = quire(runtime, "--help")
    assert done.returncode == 0, done.stderr
    assert f"in the package {TESTING_NAME}" in " ".join(done.stdout.split())
