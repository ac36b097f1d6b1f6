"""`quire up` as a process: ready line, clean stop, a second start on the data, ports, the death of a bookie."""

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.client.client import Client
from quire.client.connecting import Connecting

pytestmark = pytest.mark.faults

WAIT_S = 60.0


class Up:
    """A running `quire up --json`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        command = [
            sys.executable,
            "-m",
            "quire.cli.main",
            "up",
            "--dir",
            str(directory),
            "--json",
            *arguments,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_lines(self) -> None:
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def line(self) -> dict[str, Any]:
        line = self.lines.get(timeout=WAIT_S)
        assert line is not None, f"up ended: {self.errors}"
        return line

    def error(self) -> dict[str, Any]:
        """What it ended with, which it says on the standard error."""
        assert self.lines.get(timeout=WAIT_S) is None
        self._threads[1].join(WAIT_S)
        return json.loads(self.errors[-1])["error"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(WAIT_S)
        for thread in self._threads:
            thread.join(WAIT_S)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


@contextlib.contextmanager
def up(directory: Path, *arguments: str) -> Iterator[Up]:
    running = Up(directory, *arguments)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.wait()


def gone(pid: int) -> bool:
    """Whether a process has ended; waits for it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor):
        import select

        return bool(select.select([descriptor], [], [], WAIT_S)[0])


def test_ready_line_and_clean_stop_by_sigterm_and_by_ctrl_c(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with up(tmp_path / "d") as running:
            ready = running.line()
            assert ready["cluster"] == f"sqlite:{tmp_path / 'd' / 'metadata.db'}"
            assert set(ready) == {"cluster", "bookies"}
            assert [set(bookie) for bookie in ready["bookies"]] == [{"id", "address", "pid", "directory"}] * 3
            assert running.stop(number) == 0
            assert "".join(running.errors) == "Stopped cleanly.\n"
            assert all(gone(bookie["pid"]) for bookie in ready["bookies"])


async def test_a_second_start_goes_on_with_bookies_ports_and_entries(tmp_path: Path) -> None:
    async def write(uri: str) -> int:
        async with Connecting(uri, Client) as client, await client.create_ledger() as ledger:
            await ledger.append_many([b"%d" % number for number in range(1000)])
            return ledger.ledger_id

    async def read(uri: str, ledger_id: int) -> list[bytes]:
        async with Connecting(uri, Client) as client:
            reader = await client.open_ledger(ledger_id)
            return [bytes(entry.payload) async for entry in reader.read()]

    with up(tmp_path, "--bookies", "4") as running:
        first = running.line()
        ledger_id = await write(first["cluster"])
        assert running.stop() == 0
    with up(tmp_path) as running:
        second = running.line()
        names = [(bookie["id"], bookie["address"]) for bookie in second["bookies"]]
        assert names == [(bookie["id"], bookie["address"]) for bookie in first["bookies"]]
        assert await read(second["cluster"], ledger_id) == [b"%d" % number for number in range(1000)]
        assert running.stop() == 0


def test_a_former_port_that_is_taken_is_exchanged(tmp_path: Path) -> None:
    with up(tmp_path, "--bookies", "1") as running:
        first = running.line()["bookies"][0]
        assert running.stop() == 0
    port = int(first["address"].rpartition(":")[2])
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        with up(tmp_path) as running:
            second = running.line()["bookies"][0]
            assert second["id"] == first["id"]
            assert second["address"] != first["address"]
            assert running.stop() == 0
            assert any("bookie-1 got another port" in line for line in running.errors)


def test_a_port_that_was_asked_for_and_is_taken_is_an_error_that_names_it(tmp_path: Path) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        with up(tmp_path / "up", "--bookies", "1", "--port", str(port)) as running:
            error = running.error()
            assert running.wait() == 1
        assert error["code"] == "port_in_use"
        assert error["ids"] == {"port": port}
        assert re.search(rf"Port {port} .* in use .* --port", error["message"])
        bookie = subprocess.run(
            [
                *(sys.executable, "-m", "quire", "bookie", "--dir", str(tmp_path / "b"), "--create"),
                *("--cluster", f"sqlite:{tmp_path / 'm.db'}", "--listen", f"127.0.0.1:{port}"),
            ],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert bookie.returncode == 1
        assert re.search(rf"Port {port} .* in use .* --listen", bookie.stderr)


def test_two_at_one_directory_and_fewer_bookies_than_it_holds_are_refused(tmp_path: Path) -> None:
    with up(tmp_path, "--bookies", "2") as running:
        running.line()
        with up(tmp_path) as second:
            assert second.error()["code"] == "directory_in_use"
            assert second.wait() == 1
        assert running.stop() == 0
    with up(tmp_path, "--bookies", "1") as third:
        assert "holds 2 bookies" in third.error()["message"]
        assert third.wait() == 2


async def test_a_killed_bookie_is_reported_with_its_log_and_the_others_go_on(tmp_path: Path) -> None:
    async def write(uri: str) -> int:
        async with (
            Connecting(uri, Client) as client,
            await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as ledger,
        ):
            return await ledger.append(b"still here")

    with up(tmp_path) as running:
        ready = running.line()
        victim = ready["bookies"][1]
        os.kill(victim["pid"], signal.SIGKILL)
        death = running.line()
        assert death["event"] == "bookie_died"
        assert death["id"] == victim["id"]
        assert death["reason"] == "was killed by SIGKILL"
        assert any("serves on" in line for line in death["log"])
        assert f"--listen {victim['address']}" in death["again"]
        assert await write(ready["cluster"]) == 0
        assert running.stop() == 1
        assert any("was killed by SIGKILL" in line for line in running.errors)


def test_bookies_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        ready = running.line()
        running.stop(signal.SIGKILL)
        assert all(gone(bookie["pid"]) for bookie in ready["bookies"])
    with up(tmp_path) as running:
        assert [b["id"] for b in running.line()["bookies"]] == [b["id"] for b in ready["bookies"]]
        assert running.stop() == 0


def test_an_idle_cluster_of_three_stays_under_300_mib(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        pids = [running.process.pid, *(bookie["pid"] for bookie in running.line()["bookies"])]
        assert sum(map(resident_mib, pids)) < 300
        assert running.stop() == 0


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) / 1024


def test_a_damaged_list_of_bookies_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "bookies.json").write_text("{")
    with up(tmp_path) as running:
        error = running.error()
        assert error["code"] == "corrupt_metadata"
        assert str(tmp_path / "bookies.json") in error["message"]
        assert running.wait() == 1


class Foreground:
    """A command that runs until it is told to stop."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "quire", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def stop(self, number: int) -> tuple[int, str, str]:
        self.process.send_signal(number)
        rest, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, rest, errors


def test_a_bookie_in_the_foreground_and_ctrl_c_at_a_tail(tmp_path: Path) -> None:
    cluster = ("--cluster", f"sqlite:{tmp_path / 'm.db'}")
    bookie = Foreground(
        "bookie", "--dir", str(tmp_path / "one"), *cluster, "--listen", "0", "--create", "--json"
    )
    try:
        ready = json.loads(bookie.process.stdout.readline())
        assert ready["id"].startswith("one.")
        assert ready["pid"] == bookie.process.pid
        quire = [sys.executable, "-m", "quire"]
        one = ("-E", "1", "-w", "1", "-a", "1")
        subprocess.run([*quire, "log", "create", "x", *one, *cluster], check=True, timeout=WAIT_S)
        subprocess.run([*quire, "log", "append", "x", *cluster], input=b"first\n", check=True, timeout=WAIT_S)
        tail = Foreground("log", "read", "x", "--follow", *cluster)
        assert tail.process.stdout.readline() == "first\n"
        code, _, errors = tail.stop(signal.SIGINT)
        assert (code, errors) == (130, "Interrupted.\n")
        tail = Foreground("log", "tail", "x", *cluster, "--json")
        assert json.loads(tail.process.stdout.readline())["value"] == "first"
        code, _, errors = tail.stop(signal.SIGINT)
        assert code == 130
        assert json.loads(errors.splitlines()[-1])["error"]["code"] == "interrupted"
    finally:
        code, _, errors = bookie.stop(signal.SIGINT)
    assert code == 0
    assert errors.endswith("Stopped cleanly.\n")


def test_one_bad_directory_of_three_is_named_and_the_others_serve(tmp_path: Path) -> None:
    with up(tmp_path) as running:
        first = running.line()["bookies"]
        assert running.stop() == 0
    cookie = tmp_path / "bookie-2" / "VERSION"
    text = cookie.read_bytes()
    at = text.index(b"instanceId") + 15
    cookie.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
    with up(tmp_path) as running:
        ready = running.line()
        assert [bookie["id"] for bookie in ready["bookies"]] == [first[0]["id"], first[2]["id"]]
        [failed] = ready["failed"]
        assert failed["name"] == "bookie-2"
        assert "VERSION is damaged" in failed["reason"]
        assert "empty" not in failed["reason"]
        assert running.stop() == 5
        assert "bookie-2 did not start" in running.errors[0]
    cookie.write_bytes(text)
    with up(tmp_path) as running:
        assert [bookie["id"] for bookie in running.line()["bookies"]] == [bookie["id"] for bookie in first]
        assert running.stop() == 0


def test_where_no_bookie_starts_all_are_named(tmp_path: Path) -> None:
    with up(tmp_path, "--bookies", "2") as running:
        running.line()
        assert running.stop() == 0
    for number in (1, 2):
        (tmp_path / f"bookie-{number}" / "VERSION").write_bytes(b"?")
    with up(tmp_path) as running:
        message = running.error()["message"]
        assert message.startswith("No bookie started. bookie-1 did not start")
        assert "bookie-2 did not start" in message
        assert running.wait() == 1


@pytest.mark.parametrize("left", [None, pytest.param(b"", marks=pytest.mark.slow)])
def test_a_lost_metadata_file_is_not_made_anew(left: bytes | None, tmp_path: Path) -> None:
    """A new one would know none of the ledgers, and the bookies would refuse it for ever."""
    with up(tmp_path / "d", "--bookies", "2") as running:
        cluster = running.line()["cluster"]
        assert running.stop() == 0
    path = tmp_path / "d" / "metadata.db"
    saved = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(left)

    def files() -> dict[Path, bytes]:
        return {one: one.read_bytes() for one in (tmp_path / "d").rglob("*") if one.is_file()}

    before = files()
    bookie = ("bookie", "--dir", str(tmp_path / "d" / "bookie-1"), "--listen", "0", "--create")
    for command in (("up", "--dir", str(tmp_path / "d")), bookie, ("metadata", "format"), ("log", "list")):
        where = () if command[0] == "up" else ("--cluster", cluster)
        done = subprocess.run(
            [sys.executable, "-m", "quire", *command, *where],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        assert "estore" in done.stderr.splitlines()[-1], done.stderr
        assert "quire up --dir" not in done.stderr
        assert files() == before
    path.write_bytes(saved)
    with up(tmp_path / "d") as running:
        assert len(running.line()["bookies"]) == 2
        assert running.stop() == 0
