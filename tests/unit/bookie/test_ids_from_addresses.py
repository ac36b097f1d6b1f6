"""Bookies whose id is their address, as Java clients before 4.12 need it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quire.bookie.config import BookieConfig
from quire.core.errors import MisuseError, WrongDirectoryError
from support.java_peers import free_port
from support.small_cluster import SmallCluster


async def test_entries_are_read_back_after_a_restart_and_an_emptied_directory_is_refused(
    tmp_path: Path,
) -> None:
    cluster = SmallCluster(tmp_path, id_from_address=True)
    port = free_port()
    try:
        server = await cluster.start_bookie("b1", port=port)
        assert server.bookie_id == f"127.0.0.1:{port}"
        client = await cluster.client()
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await ledger.append(b"value")
        await ledger.close()
        await cluster.stop_bookie(server.bookie_id)
        again = await cluster.start_bookie("b1", port=port)
        reader = await client.open_ledger(ledger.ledger_id)
        assert [bytes(entry.payload) async for entry in reader.read(0, 0)] == [b"value"]
        await cluster.stop_bookie(again.bookie_id)
        with pytest.raises(
            WrongDirectoryError, match=f"start it with --id-from-address --advertise 127.0.0.1:{port}"
        ):
            await cluster.start_bookie("b1", id_from_address=False)
        shutil.rmtree(tmp_path / "b1")
        for name in ("b1", "b2"):
            with pytest.raises(WrongDirectoryError, match="none of that bookie's entries"):
                await cluster.start_bookie(name, port=port)
        named = await cluster.start_bookie("b2", id_from_address=False, port=port)
        assert named.bookie_id.startswith("b2.")
    finally:
        await cluster.close()


def test_the_announced_address_counts_and_its_port_stays(tmp_path: Path) -> None:
    def name(**settings: object) -> str:
        return BookieConfig(tmp_path, id_from_address=True, **settings).stable_name  # type: ignore[arg-type]

    assert name(port=3181) == "127.0.0.1:3181"
    assert name(host="0.0.0.0", port=3181, advertise=("bookie-1.example", 0)) == "bookie-1.example:3181"
    assert name(advertise=("10.0.0.7", 4000)) == "10.0.0.7:4000"
    with pytest.raises(MisuseError, match="a port that stays"):
        name()
    with pytest.raises(MisuseError, match=r"BookieConfig\.advertise"):
        name(host="0.0.0.0", port=3181)
