"""The documents: their snippets run, their links lead somewhere, their generated regions are up to date.

Before each `python` or `console` block stands `<!-- run -->`, `<!-- run: spark -->`, `<!-- run: after the one above -->`,
which is run in the same process, or `<!-- not run: reason -->`.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import quire.blocking
from quire_testing.explorer.check import EVERY_INVARIANT
from quire_testing.explorer.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>(?:not )?run[^>]*?) -->\n)?^```(?P<kind>python|console)\n(?P<text>.*?)^```",
    re.M | re.S,
)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
BIN = Path(sys.executable).parent
SECONDS = 300
GOES_ON = "run: after the one above"
CODES = re.compile(
    "|".join(rf"\b{code}\b" for code in (*MUTANTS, *EVERY_INVARIANT) if re.fullmatch(r"[A-Z]+\d+", code))
)
"""Of mutants and invariants; performance.md has claims with codes of its own."""


def name(path):
    return str(path.relative_to(ROOT))


def runnable():
    """Every block that is run, with those that go on in its process."""
    for path in DOCUMENTS:
        found = []
        for number, match in enumerate(BLOCK.finditer(path.read_text()), 1):
            if match["mark"] == GOES_ON:
                found[-1][2] += match["text"]
            elif (match["mark"] or "").startswith("run"):
                found.append([number, match["mark"], match["text"], match["kind"]])
        for number, mark, text, kind in found:
            marks = []
            if mark == "run: spark":
                # Each begins a Spark of its own, for a minute; the demo is the one that `make test` begins.
                marks = [pytest.mark.spark, pytest.mark.slow]
            yield pytest.param(kind, text, id=f"{name(path)}-{number}", marks=marks)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One cluster for all snippets, as a user would start it."""
    directory = tmp_path_factory.mktemp("docs")
    with (directory / "up.log").open("w") as log:
        up = subprocess.Popen(
            [sys.executable, "-m", "quire", "up", "--dir", str(directory / "cluster"), "--json"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with up:
        line = up.stdout.readline()
        assert line, (directory / "up.log").read_text()
        uri = json.loads(line)["cluster"]
        with quire.blocking.connect(uri) as client:
            client.log("greetings").create()  # README's snippets go on with the log of its first commands
        yield uri
        up.send_signal(signal.SIGINT)
        up.wait(30)


def test_every_snippet_is_marked():
    for path in DOCUMENTS:
        for match in BLOCK.finditer(path.read_text()):
            mark = match["mark"] or ""
            known = {"run", "run: spark", GOES_ON}
            assert mark in known or re.match(r"not run: \S+ \S+", mark), f"{path}: {match['text']}"


@pytest.mark.parametrize(("kind", "text"), list(runnable()))
def test_snippets_run(kind, text, cluster, tmp_path):
    env = {**os.environ, "QUIRE_CLUSTER": cluster, "PATH": f"{BIN}:{os.environ['PATH']}"}
    if kind == "python":
        command = [sys.executable, "-c", text]
    else:
        lines = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
        command = ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]
    done = subprocess.run(
        command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{text}\n--- said:\n{done.stdout}\n{done.stderr}"


def test_links_lead_somewhere():
    pages = [*DOCUMENTS, *(ROOT / folder / "README.md" for folder in ("bench", "changes", "tools"))]
    broken = [
        f"{name(path)}: {target}"
        for path in pages
        for target in LINK.findall(path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


def test_generated_regions_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/generate_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"run 'make docs':\n{done.stdout}{done.stderr}"


def test_the_readmes_commands_exist():
    targets = subprocess.run(
        ["make", "-qp", "help"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout
    for target in re.findall(r"^\$ make ([a-z-]+)", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{target}:", targets, re.M), target


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("script", ["tools/environment", "tools/java-peer", "tools/kafka-peer", ".ci/run"])
def test_scripts_parse_and_are_executable(script):
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_a_page_says_what_its_codes_are():
    """Codes of mutants and invariants (X9, I1) have a link to the page that lists them, at their first use or before."""
    without = []
    for path in DOCUMENTS:
        text = path.read_text()
        first = CODES.search(text)
        if first and path.name not in {"counterexamples.md", "performance.md"}:
            paragraph_end = text.find("\n\n", first.start())
            if "counterexamples" not in text[:paragraph_end]:
                without.append(f"{name(path)}: {first[0]}")
    assert without == []
