"""The blocking client against real bookies: ledgers, logs, a forked child, errors."""

import concurrent.futures
import inspect
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import blocking
from quire.cli.local.local_cluster import LocalCluster
from quire.core.errors import (
    InvalidQuorumError,
    LedgerFencedError,
    MisuseError,
    NoClusterError,
    NoSuchLedgerError,
    NotWritingError,
    PastEndError,
    TermSupersededError,
    WrongPasswordError,
)
from support.process import descriptors
from support.stream_modes import BOTH, taken
from support.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("blocking"), 3) as local:
        yield local


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[blocking.Client]:
    with blocking.connect(cluster.uri) as connected:
        yield connected


def test_a_ledger_from_creation_to_deletion(client: blocking.Client) -> None:
    with client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2, password=b"p") as ledger:
        assert ledger.append(b"0") == 0
        assert ledger.append_many([b"1", b"2"]) == range(1, 3)
        futures = [ledger.append_nowait(b"%d" % number) for number in range(3, 20_000)]
        ledger.drain()
        assert [future.result(0) for future in futures] == list(range(3, 20_000))
        assert ledger.last_add_confirmed == 19_999
    with pytest.raises(NotWritingError):
        ledger.append(b"late")
    reader = client.open_ledger(ledger.ledger_id, password=b"p")
    assert reader.closed
    assert [bytes(entry.payload) for entry in reader.read()] == [b"%d" % number for number in range(20_000)]
    assert [entry.entry_id for entry in reader.read(10, 12)] == [10, 11, 12]
    assert sum(1 for _ in reader.tail()) == 20_000
    with pytest.raises(PastEndError):
        list(reader.read(0, 20_000))
    with pytest.raises(WrongPasswordError):
        client.open_ledger(ledger.ledger_id, password=b"q")
    assert client.verify_ledger(ledger.ledger_id, b"p").complete
    assert ledger.ledger_id in list(client.ledgers())
    client.delete_ledger(ledger.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        client.ledger_metadata(ledger.ledger_id)


@BOTH
def test_a_stream_is_written_in_turn(client: blocking.Client, cluster: LocalCluster, mode: str) -> None:
    stream = client.unbounded_ledger("turns", b"p", mode=mode)
    stream.create()
    writer = stream.open_writer()
    with blocking.connect(cluster.uri) as other:
        futures = [writer.append_nowait(b"%d" % number) for number in range(1000)]
        writer.drain()
        assert [future.result(0) for future in futures] == list(range(taken(mode), taken(mode) + 1000))
        with other.unbounded_ledger("turns", b"p").open_writer() as next_one:
            assert (next_one.term, next_one.append(b"1000")) == (3, 1000 + taken(mode, 2))
        with pytest.raises(TermSupersededError) as raised:
            writer.append_nowait(b"too late").result(30)
    assert stream.resolve(raised.value) is False
    assert [bytes(entry.payload) for entry in stream.read()] == [b"%d" % number for number in range(1001)]
    assert stream.close().last_entry == 1000 + taken(mode, 3)
    assert sum(1 for _ in stream.tail(first=990 + taken(mode))) == 11
    assert list(client.unbounded_ledgers()) == ["turns"]
    stream.delete()


def test_recovery_fences_the_writer_whose_appends_are_unknown(client: blocking.Client) -> None:
    ledger = client.create_ledger()
    ledger.append(b"x")
    assert client.recover_ledger(ledger.ledger_id).record.last_entry == 0
    with pytest.raises(LedgerFencedError):
        ledger.append_nowait(b"y").result(30)
    ledger.abandon()


def test_a_log_is_followed_while_it_is_written(client: blocking.Client) -> None:
    log = client.log("followed")
    assert not log.exists()
    log.create()
    seen: list[tuple[int, bytes | None, bytes | None]] = []
    done = threading.Event()

    def follow() -> None:
        with log.tail(start=0) as records:
            for record in records:
                seen.append((record.offset, record.key, record.value))
                if len(seen) == 3000:
                    break
        done.set()

    thread = threading.Thread(target=follow)
    thread.start()
    with log.open_writer() as writer:
        futures = [writer.append_nowait(b"%d" % number, key=b"k") for number in range(2000)]
        writer.drain()
        writer.roll()
        assert list(writer.append_many([b"%d" % number for number in range(2000, 3000)])) == list(
            range(2000, 3000)
        )
        assert [future.result(0) for future in futures] == list(range(2000))
    assert done.wait(60)
    thread.join()
    assert seen == [(number, b"k" if number < 2000 else None, b"%d" % number) for number in range(3000)]
    assert client.logs() == ["followed"]
    about = log.describe()
    assert (about.start_offset, about.end_offset) == (0, 3000)
    assert sum(batch.view.count for batch in log.read_entries()) == 3000
    log.truncate(before=2000)
    assert [record.offset for record in log.read(end=2002)] == [2000, 2001]


def test_a_forked_child_connects_for_itself(client: blocking.Client, cluster: LocalCluster) -> None:
    with client.create_ledger() as ledger:
        ledger.append(b"from the parent")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            with blocking.connect(cluster.uri) as own:
                said = b"".join(bytes(entry.payload) for entry in own.open_ledger(ledger.ledger_id).read())
        finally:
            os.write(writer, said)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert answer.read() == b"from the parent"
    os.waitpid(child, 0)
    assert client.open_ledger(ledger.ledger_id).last_add_confirmed == 0


def test_a_client_that_is_dropped_is_closed(cluster: LocalCluster) -> None:
    with blocking.connect(cluster.uri) as client:
        client.log("dropped").create()
        with client.log("dropped").open_writer() as writer:
            writer.append(b"0")
    before = (descriptors("self"), threading.active_count())
    dropped = blocking.connect(cluster.uri).log("dropped").open_writer()
    futures = [dropped.append_nowait(b"%d" % number) for number in range(1, 1001)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        del dropped
        until(lambda: len(said) == 2)  # one for the writer, one for its client
        assert futures[-1].result(30) == 1000
        until(lambda: descriptors("self") <= before[0] and threading.active_count() <= before[1])
    assert [each.category for each in said] == 2 * [ResourceWarning]
    with blocking.connect(cluster.uri) as client:
        assert client.log("dropped").describe().end_offset == 1001


def test_closing_a_client_ends_the_threads_that_wait_in_it(cluster: LocalCluster) -> None:
    client = blocking.connect(cluster.uri)
    log, stream, ledger = client.log("waited"), client.unbounded_ledger("waited"), client.create_ledger()
    log.create()
    stream.create()
    kept = log.open_writer(), stream.open_writer()
    tails = [log.tail(0), stream.tail(), client.open_ledger(ledger.ledger_id, recover=False).tail()]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(list, tail) for tail in tails for _ in range(2)]
        waiting.append(pool.submit(log.open_writer, wait_for_leadership=True))
        until(lambda: all(tail._task for tail in tails))
        client.close()
        assert {type(each.exception(30)) for each in waiting} == {MisuseError}
    assert kept


def test_handles_are_not_pickled(client: blocking.Client) -> None:
    for handle in (
        client,
        client.log("any"),
        client.unbounded_ledger("any"),
        client.ledgers(),
        client._inner,
    ):
        with pytest.raises(MisuseError, match="neither pickled nor copied"):
            pickle.dumps(handle)


def test_errors_come_out_as_they_are(client: blocking.Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidQuorumError):
        client.create_ledger(ensemble_size=2, write_quorum=3)
    with pytest.raises(NoClusterError):
        blocking.connect(f"sqlite:{tmp_path / 'nothing.db'}")


@pytest.mark.parametrize(
    "kind", [blocking.Client, blocking.Log, blocking.LogWriter, blocking.LedgerReader, blocking.LedgerWriter]
)
def test_every_public_name_of_the_client_is_there_and_documented(kind: type) -> None:
    import quire.log.client
    import quire.log.log
    import quire.log.writer
    from quire.client.reading.reader import LedgerReader
    from quire.client.writing.writer import LedgerWriter

    twins = {
        "BlockingClient": quire.log.client.QuireClient,
        "BlockingLog": quire.log.log.Log,
        "BlockingLogWriter": quire.log.writer.LogWriter,
        "BlockingLedgerReader": LedgerReader,
        "BlockingLedgerWriter": LedgerWriter,
    }
    meant_for_drivers = {
        "BlockingLog": {"check_start", "collect_unlisted", "identify", "open_item"},
        "BlockingLogWriter": {
            "close_ledger",
            "drain_ledger",
            "end",
            "ended",
            "label",
            "leave",
            "ledgers",
            "opened",
            "pending_bytes",
            "rolled",
            "serve",
        },
        "BlockingLedgerReader": {"read_runs", "tail_runs"},
        "BlockingLedgerWriter": {
            *("access", "bookies_changed", "closing", "confirmed", "end", "held_bytes", "holes", "idle"),
            *("label", "leave", "problem", "stopped", "turn_ended"),
        },
        "BlockingClient": {"close_with_loop", "closed"},
    }[kind.__name__]
    names = {name for name, _ in inspect.getmembers(twins[kind.__name__]) if not name.startswith("_")}
    missing = {name for name in names - meant_for_drivers if not hasattr(kind, name)}
    assert missing == set()
    for name in names & set(dir(kind)):
        assert inspect.getdoc(getattr(kind, name)), name
