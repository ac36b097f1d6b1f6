"""Bookies as processes, told by a file; clients told by the environment; SIGHUP."""

import os
import signal

import quire.blocking
from quire.cli.local.local_cluster import LocalCluster
from support.certificates import jaas, replace
from support.waiting import until


def test_a_cluster_whose_files_are_renewed(tmp_path, keys, monkeypatch):
    jaas(tmp_path, users={"writer": "right"}, user=("writer", "right"))
    pair = keys.authority.issue("process")
    asked, own = tmp_path / "bookie.toml", tmp_path / "client.toml"
    asked.write_text(
        f'[tls]\ncertificate = "{pair.certificate}"\nkey = "{pair.key}"\n[sasl]\njaas = "jaas.conf"\n'
    )
    own.write_text(f'[tls]\nca = "{keys.authority.ca}"\n[sasl]\njaas = "jaas.conf"\n')
    monkeypatch.setenv("QUIRE_SECURITY", str(own))

    def writes(uri):
        shape = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
        with quire.blocking.connect(uri) as client, client.create_ledger(**shape) as ledger:
            return ledger.append(b"entry")

    with LocalCluster(tmp_path / "cluster", 1, security=asked) as local:
        (bookie,) = local.bookies
        assert writes(local.uri) == 0
        replace(pair, keys.authority.issue("process-renewed"))
        os.kill(bookie.pid, signal.SIGHUP)
        until(lambda: any("read again" in line for line in bookie.last_lines()), "the files are read again")
        assert writes(local.uri) == 0
        assert bookie.running
