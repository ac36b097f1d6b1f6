"""What is said about an extra that is not installed, by where this installation came from; and that no text names another."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from quire import distribution
from quire.core.errors import MissingExtraError
from quire.core.version import VERSION
from quire.distribution import NAME, TESTING, Extra, install_command, install_testing_command, require

ROOT = Path(__file__).resolve().parents[2]
WHEEL = f"quire_log-{VERSION}-py3-none-any.whl"
TESTING_WHEEL = f"quire_log_testing-{VERSION}-py3-none-any.whl"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Give the program another origin: what an installer recorded of it, and its installer."""

    def install(origin, installer="pip"):
        texts = {"direct_url.json": None if origin is None else json.dumps(origin), "INSTALLER": installer}
        found = SimpleNamespace(read_text=texts.get, locate_file=(tmp_path / "site-packages").joinpath)
        monkeypatch.setattr(distribution.importlib.metadata, "distributions", lambda name: [found])
        monkeypatch.setattr(distribution, "_HERE", tmp_path / "site-packages" / "quire")

    return install


def test_a_clone_is_named_by_its_place(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert install_command(Extra.SPARK).endswith("pip install -e '.[spark]'")  # as `make setup` installed it
    assert install_testing_command().endswith("pip install ./src/quire_testing")
    monkeypatch.setattr(distribution, "_installed", lambda: None)
    assert install_command(Extra.SPARK) == "pip install '.[spark]'"
    monkeypatch.chdir(tmp_path)
    assert install_command(Extra.SPARK) == f"pip install '{ROOT}[spark]'"
    assert install_testing_command() == f"pip install {ROOT}/src/quire_testing"


def test_a_wheel_is_named_by_its_file(installed, tmp_path):
    file = tmp_path / "with space" / WHEEL
    installed({"url": file.as_uri(), "archive_info": {}})
    assert install_command(Extra.ETCD) == f"pip install '{WHEEL}[etcd]'"  # the file is not there any more
    assert install_testing_command() == f"pip install {TESTING_WHEEL}"
    file.parent.mkdir()
    file.touch()
    assert install_command(Extra.ETCD) == f"pip install '{file}[etcd]'"
    file.with_name(TESTING_WHEEL).touch()
    assert install_testing_command() == f"pip install '{file.parent}/{TESTING_WHEEL}'"


@pytest.mark.parametrize(
    ("origin", "installer", "extra", "testing"),
    [
        (None, "pip", f"pip install '{NAME}[delta]'", f"pip install {TESTING}"),
        (None, "uv\n", f"uv pip install '{NAME}[delta]'", f"uv pip install {TESTING}"),
        (None, None, f"pip install '{WHEEL}[delta]'", f"pip install {TESTING_WHEEL}"),
        (
            {"url": "file:///src/quire", "dir_info": {}},
            "pip",
            "pip install '/src/quire[delta]'",
            "pip install /src/quire/src/quire_testing",
        ),
        (
            {"url": f"https://host/wheels/{WHEEL}", "archive_info": {}},
            "pip",
            f"pip install '{NAME}[delta] @ https://host/wheels/{WHEEL}'",
            f"pip install '{TESTING} @ https://host/wheels/{TESTING_WHEEL}'",
        ),
        (
            {"url": "https://host/quire.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            "pip",
            f"pip install '{NAME}[delta] @ git+https://host/quire.git@0a1b'",
            f"pip install '{TESTING} @ git+https://host/quire.git@0a1b#subdirectory=src/quire_testing'",
        ),
    ],
    ids=["by name", "by uv", "unpacked", "folder", "address", "repository"],
)
def test_other_origins(installed, origin, installer, extra, testing):
    installed(origin, installer)
    assert (install_command(Extra.DELTA), install_testing_command()) == (extra, testing)


def test_what_is_absent_is_one_sentence(monkeypatch):
    require(Extra.SPARK, "This test")  # everything is there
    for module in ("numpy", "prometheus_client"):
        monkeypatch.setitem(sys.modules, module, None)
    sentence = r"^This test needs the extra '%s' \(%s are not installed\): (uv )?pip install .*\[%s\]'$"
    with pytest.raises(MissingExtraError, match=sentence % ("spark", "numpy, prometheus_client", "spark")):
        require(Extra.SPARK, "This test")
    # Where no platform brings a PySpark, the extra that has it is named.
    monkeypatch.setitem(sys.modules, "pyspark", None)
    absent = "numpy, prometheus_client, pyspark"
    with pytest.raises(MissingExtraError, match=sentence % ("spark-local", absent, "spark-local")):
        require(Extra.SPARK, "This test")
    assert issubclass(MissingExtraError, ImportError)  # what programs catch that can do without


INSTALLS = re.compile(r"pipx? install((?: +-[-\w]+)*) +(?P<quote>['\"]?)(?P<what>[^\s`'\"]+)(?P=quote)")
PLACES = re.compile(r"[./{$].*|.*\.whl(\[.*)?|requirements/.*")
"""A clone, a path, a wheel's file, or what a program puts together."""
PROSE = re.compile(r"to|[0-9.]+")
OTHER_NAMES = re.compile(r"\bquire\[|\bquire-testing\b|\buv (add|tool|pip)( install)? quire\b")


@pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git and its clone"
)
def test_no_text_installs_what_is_not_ours():
    """Nothing of ours is on an index yet, and `quire` there is another program: texts name a clone or a wheel's file."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    pinned = set(
        re.findall(r"^([a-z0-9.-]+)==", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE)
    )
    wrong, seen = [], 0
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if not path.is_file() or name == "tests/unit/test_distribution.py":
            continue
        text = path.read_text("utf-8", "ignore")
        if "pip" not in text and "quire" not in text:
            continue
        for found in INSTALLS.finditer(text):
            what = re.sub(r"(?<=.)[.,;:)]+$", "", found["what"])
            seen += 1
            if not (
                PLACES.fullmatch(what) or PROSE.fullmatch(what) or re.split(r"[\[<>=]", what)[0] in pinned
            ):
                wrong.append(f"{name}: {found[0]}")
        wrong += [f"{name}: {found[0]}" for found in OTHER_NAMES.finditer(text)]
    assert not wrong, "\n".join(wrong)
    assert seen >= 3  # the pages have some
