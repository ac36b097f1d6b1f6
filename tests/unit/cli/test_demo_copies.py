"""The demo's look at every copy, and its repair, on a cluster whose bookie was killed while a ledger was written."""

from pathlib import Path

import pytest

from quire import blocking
from quire.cli.console.output import Output
from quire.cli.demo import under_fire
from quire.cli.demo.narrator import Narrator
from quire.cli.local.local_cluster import LocalCluster


def test_copies_that_the_dead_bookie_missed_are_named_made_and_looked_at_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrator = Narrator(Output(as_json=False))
    with LocalCluster(tmp_path / "cluster", 3) as local, blocking.connect(local.uri) as client:
        with client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"") as ledger:
            ledger.append_many([b"on all three"] * 10)
            dead = local.kill(0)
            ledger.append_many([b"on two of them"] * 5)
            ledgers = [ledger.ledger_id]
        under_fire.await_bookie(client, local.restart(0).id)
        copies = under_fire.verify_copies(client, ledgers)
        assert (copies.entries, copies.wanted, copies.good) == (15, 45, 40)
        under_fire.say_copies(narrator, copies, len(ledgers))
        assert f"missing: entries 10..14 of ledger {ledgers[0]} on {dead.id}" in capsys.readouterr().out
        assert under_fire.repair_copies(narrator, client, local.uri, ledgers) == 5
        assert "none is missing now" in capsys.readouterr().out
        under_fire.say_copies(narrator, under_fire.verify_copies(client, ledgers), len(ledgers))
        assert "15 entries in 1 ledger, and all 45 copies of them" in capsys.readouterr().out
