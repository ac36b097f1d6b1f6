"""BookKeeper's own test classes on our bookies: what its developers ask of a bookie is asked of ours.

The classes are those of the published test jar. Only the class that starts bookies is replaced (`tools/java-tests`).
`docs/moving.md` shows what passed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from support.java_peers import why_not
from support.rounds import keep_figures

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(5400)]

SOURCES = Path(__file__).resolve().parents[2] / "tools" / "java-tests"
KEYS = (".pem", ".jks", ".p12", "Password.txt")
IN_ITS_PROCESS = "asks a plugin that runs inside a Java bookie's process"
LOCAL = "uses connections inside one Java process"
NOT_STARTED = (
    "a bookie whose key does not fit its certificate does not start; Java's starts and refuses every client"
)
NOT_PROVEN = (
    "Java's deletion leaves no tombstone: a ledger goes after two passes that found it and one that missed it, and this "
    "one lives for less than two passes; its fence is served until then"
)
DIFFERENT = {
    "testConcurrentFenceAndDeleteLedger": NOT_PROVEN,
    "testBookieAuthPluginRequireClientTLSAuthentication": IN_ITS_PROCESS,
    "testBookieAuthPluginRequireClientTLSAuthenticationLocal": LOCAL,
    "testBookieAuthPluginDenyAccesstoClientWithoutTLSAuthentication": IN_ITS_PROCESS,
    "testBookieAuthPluginDenyAccessToClientWithoutTLSAuthenticationLocal": LOCAL,
    "testBookieAuthPluginDenyAccessToClientWithoutTLS": IN_ITS_PROCESS,
    "testRefreshDurationForBookieCerts": NOT_STARTED,
    "testKeyMismatchFailure": NOT_STARTED,
}
"""Tests that our bookies cannot or are not meant to pass, and why."""


@pytest.fixture(scope="module")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The jars, with our class that starts bookies before them."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("java-tests")
    classes, jars = folder / "classes", folder / "jars"
    classes.mkdir()
    for name in ("pom.xml", "BookKeeperClusterTestCase.java", "RunClasses.java"):
        shutil.copy(SOURCES / name, folder)
    resolve = ["mvn", "-B", "-q", "dependency:build-classpath", f"-Dmdep.outputFile={jars}"]
    subprocess.run(resolve, cwd=folder, check=True, timeout=600)
    found = jars.read_text().strip()
    subprocess.run(
        ["javac", "-nowarn", "-cp", found, "-d", classes, *sorted(folder.glob("*.java"))],
        check=True,
        timeout=600,
    )
    (tests,) = (jar for jar in found.split(":") if "bookkeeper-server" in jar and jar.endswith("-tests.jar"))
    with zipfile.ZipFile(tests) as jar:
        jar.extractall(classes, [name for name in jar.namelist() if "/" not in name and name.endswith(KEYS)])
    return f"{classes}:{found}"


def results(classpath: str, name: str, folder: Path) -> list[tuple[str, str, str]]:
    """(test, outcome, what it said) of each test of a class."""
    command = [
        "java",
        "-XX:TieredStopAtLevel=1",
        f"-Dquire={Path(sys.executable).parent / 'quire'}",
        f"-Dquire.directory={folder}",
        "-cp",
        classpath,
        "RunClasses",
        name,
    ]
    with (folder / "errors").open("w") as errors:
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, check=False
        )
    rows = [line.split("\t") for line in done.stdout.splitlines() if line.startswith("RESULT\t")]
    return [(test, outcome, said) for _, _, test, outcome, said in rows]


@pytest.mark.parametrize(
    ("name", "least"),
    [("client.TestFencing", 10), ("client.ExplicitLacTest", 15), ("tls.TestTLS", 150)],
)
def test_bookkeepers_tests_pass_on_our_bookies(classpath: str, name: str, least: int, tmp_path: Path) -> None:
    found = results(classpath, f"org.apache.bookkeeper.{name}", tmp_path)
    counts: Counter[str] = Counter()
    failed, different = [], {}
    for test, outcome, said in found:
        method = test.partition("[")[0]
        if method in DIFFERENT:
            counts["different"] += outcome != "assumed"
            different[method] = DIFFERENT[method]
        elif outcome == "failed":
            failed.append(f"{test}: {said}")
        counts[outcome] += method not in DIFFERENT
    assert len(found) >= least, found
    assert not failed, failed
    keep_figures(
        f"java_class_{name.rpartition('.')[2]}",
        {"passed": counts["passed"], "different": counts["different"], "not meant": counts["assumed"]},
        seed=None,
        rows=different,
    )
