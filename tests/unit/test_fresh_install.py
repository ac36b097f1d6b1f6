"""Somebody who installed the wheel a minute ago: how much it is, what it loads, that it works, and what it says is missing."""

import asyncio
import re
import shlex
import sys

import pytest

import quire
from quire.log.config import LogConfig
from quire.wire.batch import encode_batch
from quire.wire.batch_format import Codec
from support.fresh import ROOT, Fresh, first_block, python_or_skip, with_uv
from support.wheels import built

pytestmark = pytest.mark.long

DISK_BYTES_MAX = 40_000_000
HERE = "{}.{}".format(*sys.version_info)
OTHERS = [
    pytest.param(version, marks=pytest.mark.slow)
    for version in ("3.11", "3.12", "3.13", "3.14")
    if version != HERE
]
NEVER_LOADED = {
    "asyncio", "crc32c", "google", "grpc", "kazoo", "logging", "numpy", "pyarrow", "pyspark", "rich", "socket", "sqlite3", "ssl",
    "subprocess", "threading", "typer", "uvloop",
}  # fmt: skip
ABSENT = {"grpc", "kazoo", "numpy", "puresasl", "pyarrow", "pyspark", "quire_testing", "uvloop"}
READY = "Ctrl-C stops it"
CASES = {
    "zookeeper": [
        "quire log list --cluster zk://127.0.0.1:1/ledgers",
        "quire metadata format --cluster zk://127.0.0.1:1/ledgers",
        "QUIRE_SECURITY=sasl.toml quire log read greetings",
    ],
    "etcd": [
        "quire log list --cluster etcd://127.0.0.1:1/ledgers",
        "quire metadata format --cluster etcd://127.0.0.1:1/ledgers",
    ],
    "arrow": [
        "quire log export greetings greetings.parquet",
        "quire log import greetings greetings.parquet",
        "quire log read columns",
    ],
    "spark-local": [
        "quire spark run",
        "quire spark run archive --log greetings",
        "quire spark doctor",
        "quire demo",
    ],
}
USE = """
import sys, quire.blocking
with quire.blocking.connect() as client:
    log = client.log("orders")
    log.create()
    with log.open_writer() as writer:
        writer.append_many([b"pear", b"apple"], keys=[b"a", b"b"])
    print([(record.offset, record.key, bytes(record.value)) for record in log.read()])
print(sorted(set(sys.argv[1:]) & set(sys.modules)))
"""
COST = "import time; b = time.process_time_ns(); import quire; print(time.process_time_ns() - b)"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=[HERE, *OTHERS])
def base(request, wheel, tmp_path_factory):
    """An environment with the wheel and its base dependencies."""
    python = sys.executable if request.param == HERE else python_or_skip(request.param)
    return Fresh(tmp_path_factory.mktemp("base"), python, wheel, pinned=request.param == HERE)


def test_it_is_small_and_loads_little(base, record_property):
    found = base.disk_bytes()
    assert found <= DISK_BYTES_MAX
    loaded = base.python("import quire, sys; print(*{name.partition('.')[0] for name in sys.modules})")
    assert loaded.returncode == 0, loaded.stderr
    assert not NEVER_LOADED & set(loaded.stdout.split())
    cost = min(int(base.python(COST).stdout) for _ in range(5))
    line = f"{base.venv}: {found / 1e6:.1f} MB on disk, import quire {cost / 1e6:.0f} ms of CPU (aim: at most 40 MB and 100 ms)"
    record_property("fresh install", line)
    print(line)


async def test_the_first_block_of_readme_and_then_a_program(base, wheel):
    """As it is pasted: the first command in a terminal of its own, the others in another one."""
    (up, _), *others = first_block((ROOT / "README.md").read_text())
    with base.terminal(up, READY) as said:
        assert not [
            line
            for line in (up, *(line for line, _ in others))
            if re.search(r"export|source|--cluster", line)
        ]
        for line, _ in others:
            done = base.shell(line)
            assert done.returncode == 0, (line, done.stderr)
        # What all of them print is compared in tests/faults/test_recording.py.
        assert (done.stdout.splitlines(), done.stderr) == (others[-1][1], "")
        uri = said[0].removeprefix("Cluster ")
        used = base.python(USE, *ABSENT, QUIRE_CLUSTER=uri)
        assert (used.stdout, used.stderr) == ("[(0, b'a', b'pear'), (1, b'b', b'apple')]\n[]\n", "")
        await write_columns(uri)
        assert_each_extra_is_named(base, wheel)


async def write_columns(uri):
    """With pyarrow installed: a log that everybody can read, and one that was asked to be otherwise."""
    async with quire.connect(uri) as client:
        for name, config in (("rows", None), ("columns", LogConfig(codec="arrow"))):
            log = client.log(name, config=config)
            await log.create()
            async with await log.open_writer() as writer:
                await asyncio.gather(*(writer.append(value, key=b"k") for value in (b"one", b"two")))


def assert_each_extra_is_named(base, wheel):
    (base.home / "sasl.toml").write_text('[sasl]\nusername = "u"\npassword = "p"\n')
    (base.home / "sasl.toml").chmod(0o600)
    (base.home / "greetings.parquet").touch()
    assert base.shell("quire log read rows").stdout == "one\ntwo\n"
    for extra, lines in CASES.items():
        for line in lines:
            done = base.shell(line)
            command = f"pip install {shlex.quote(f'{wheel}[{extra}]')}"
            assert done.returncode in {1, 2}, (line, done)
            assert f" needs the extra '{extra}' (" in done.stderr, (line, done)
            assert command in done.stderr, (line, done)
            assert done.stderr.count("\n") == 1 or line == "quire demo", (line, done)


def test_imports_name_their_extra(base):
    done = base.python("import quire.spark")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "quire.core.errors.MissingExtraError: quire.spark needs the extra 'spark-local' (numpy, pyarrow, "
    )
    done = base.python("import quire.log.archive")
    assert "MissingExtraError: quire.log.archive needs the extra 'arrow' (pyarrow is not" in done.stderr
    entry = encode_batch([b"one", b"two"], base_ms=5, codec=Codec.ARROW)
    code = "import sys; from quire.wire.batch import BatchView; BatchView.parse(bytes.fromhex(sys.argv[1])).values()"
    done = base.python(code, entry.hex())
    assert "MissingExtraError: A batch of records with the arrow codec needs the extra 'arrow'" in done.stderr


def test_the_command_of_a_hint_works(base):
    """It is run as it was printed; what it installs is there, and no more."""
    said = base.shell(CASES["zookeeper"][0]).stderr
    command = said.rpartition("not installed): ")[2].strip()
    done = with_uv(f"export VIRTUAL_ENV={base.venv}; {command}")
    assert done.returncode == 0, done.stderr
    assert base.python("import kazoo.client, puresasl").returncode == 0
    assert base.python("import pyarrow").returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("version", ["==5.28.0", "==6.31.0", ""], ids=["5.28", "6.31", "newest"])
def test_one_set_of_stubs_serves_every_protobuf(version, wheel, tmp_path):
    tools = ["pytest", "pytest-asyncio", "pytest-timeout", "hypothesis", "uvloop"]
    wanted = [f"quire-log[arrow,etcd,zookeeper] @ {wheel.as_uri()}", f"protobuf{version}", *tools]
    fresh = Fresh(tmp_path, sys.executable, *wanted, pinned=False)
    found = fresh.python("import google.protobuf as p; print(p.__version__)").stdout.strip()
    assert found.startswith(version.removeprefix("==")), found
    done = fresh.shell(
        f"cd {shlex.quote(str(ROOT))} && python -m pytest -q -x tests/golden tests/vectors tests/unit/wire",
        seconds=600,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.search(r"\b1[0-9]{3} passed", done.stdout), done.stdout[-300:]
