"""A store that does not respond is named after a second, once for all that wait for it."""

import asyncio
import logging
import socket
import socketserver
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quire.metadata.connect import open_store
from quire.metadata.store import Create
from support.certificates import Authority
from support.waiting import until_async


class Clear(socketserver.ThreadingTCPServer):
    """Responds in clear text, also to a client that begins with TLS."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, Greeter)


class Greeter(socketserver.BaseRequestHandler):
    """One connection."""

    def handle(self) -> None:
        self.request.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "quire.metadata.slow"]


@pytest.mark.parametrize(("scheme", "what"), [("zk", "ZooKeeper"), ("etcd", "etcd")])
async def test_a_server_that_says_nothing(scheme: str, what: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        with socket.create_server(("127.0.0.1", 0)) as server:
            place = f"127.0.0.1:{server.getsockname()[1]}"
            opening = asyncio.ensure_future(open_store(f"{scheme}://{place}/ledgers"))
            await until_async(lambda: said(caplog))
            opening.cancel()
            await asyncio.wait([opening])
        assert said(caplog) == [
            f"waiting for {what} at {place}, which has not responded for 1 s (it fails after 15 s)"
        ]


async def test_a_file_that_another_process_has_locked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metadata.db"
    with caplog.at_level(logging.WARNING):
        async with await open_store(f"sqlite:{path}", create=True) as store:
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            changes = [asyncio.ensure_future(store.multi([Create(f"a/{n}", b"")])) for n in range(3)]
            await until_async(lambda: said(caplog))
            other.execute("ROLLBACK")
            await asyncio.gather(*changes)
        assert said(caplog) == [
            f"waiting for the metadata file {path}, which has not responded for 1 s (it fails after 10 s)"
        ]


def test_what_grpc_writes_by_itself_stays_out(tmp_path: Path) -> None:
    answering = threading.Thread(target=(server := Clear(("127.0.0.1", 0))).serve_forever)
    answering.start()
    try:
        uri = f"etcd://127.0.0.1:{server.server_address[1]}/ledgers?tls_ca={Authority(tmp_path).ca}"
        command = [sys.executable, "-m", "quire", "cluster", "health", "--timeout", "3", "--cluster", uri]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        server.shutdown()
        answering.join()
        server.server_close()
    waiting, failed = done.stderr.splitlines()
    assert waiting.startswith("waiting for etcd at 127.0.0.1:")
    assert failed.startswith("The metadata store of etcd://127.0.0.1:")
