"""The commands against a real cluster of three bookie processes, and their errors."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.local import recovering, serve
from quire.cli.local.local_cluster import LocalCluster
from quire.cli.main import app
from support.commands import Quire, error_of, objects

LINES = b"".join(b"line %d\n" % number for number in range(5000))


def test_lines_go_through_a_ledger(quire: Quire) -> None:
    made = objects(quire("ledger", "append", "--json", given=LINES))[0]
    assert made["entries"] == 5000
    assert made["last_entry"] == 4999
    assert made["state"] == "closed"
    ledger = str(made["ledger_id"])
    assert quire("ledger", "read", ledger).stdout_bytes == LINES
    assert quire("ledger", "tail", ledger, "--first", "4998").stdout_bytes == b"line 4998\nline 4999\n"
    shown = objects(quire("ledger", "show", ledger, "--json"))[0]
    assert (shown["state"], shown["last_entry"], shown["quorums"]) == ("closed", 4999, "3/3/2")
    assert [len(item["bookies"]) for item in shown["ensembles"]] == [3]
    assert "[0]  [1]  [2]" in quire("ledger", "show", ledger).stdout
    assert ledger in [str(row["ledger_id"]) for row in objects(quire("ledger", "list", "--json"))]
    assert "closed" in quire("ledger", "list").stdout


def test_a_log_that_the_cluster_has_no_room_for_is_warned_of_when_it_is_made(quire: Quire) -> None:
    warned = quire("log", "create", "wide", "-E", "5").stderr
    assert warned.startswith("Log wide takes no records yet: a ledger with E=5 Qw=3 Qa=2 needs")
    refused = quire("log", "append", "wide", given="one\n", code=1).stderr
    for said in (warned, refused):
        assert "request a smaller --ensemble-size or --min-present (`quire log alter wide` changes" in said
        assert "trying again" not in said
    assert not quire("log", "alter", "wide", "-E", "3").stderr
    assert (
        quire("log", "append", "wide", given="one\n").stdout == "Log wide: 1 record, 3 B, at offsets 0..0.\n"
    )


def test_length_delimited_records_keep_every_byte(quire: Quire, tmp_path: Path) -> None:
    records = [b"", b"\n", b"\0\xff" * 100, b"text"]
    data = b"".join(len(record).to_bytes(4, "big") + record for record in records)
    (tmp_path / "in").write_bytes(data)
    made = objects(quire("ledger", "append", str(tmp_path / "in"), "--delimited", "--json"))[0]
    ledger = str(made["ledger_id"])
    assert quire("ledger", "read", ledger, "--delimited").stdout_bytes == data
    entries = objects(quire("ledger", "read", ledger, "--json"))
    assert [entry["entry_id"] for entry in entries] == [0, 1, 2, 3]
    assert entries[3]["payload"] == "text"
    assert "payload_base64" in entries[2]


def test_an_abandoned_ledger_is_recovered_verified_and_deleted(quire: Quire, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.touch(0o600)
    secret.write_text("p\n")
    password = ("--password-file", str(secret), "--json")
    arguments = ("ledger", "append", "--leave-open", "--digest", "mac", *password)
    ledger = str(objects(quire(*arguments, given=b"a\nb\n"))[0]["ledger_id"])
    assert objects(quire("ledger", "show", ledger, "--json"))[0]["state"] == "open"
    assert error_of(quire("ledger", "recover", ledger, "--json", code=1))["code"] == "wrong_password"
    done = objects(quire("ledger", "recover", ledger, *password))[0]
    assert (done["last_entry"], done["already_closed"], done["limbo_left"]) == (1, False, {})
    assert objects(quire("ledger", "recover", ledger, *password))[0]["already_closed"]
    verified = objects(quire("ledger", "verify", ledger, *password))[0]
    assert (verified["good"], verified["entries"], verified["copies"]) == (True, 2, 6)
    assert error_of(quire("ledger", "delete", ledger, "--json", code=2))["code"] == "misuse"
    assert objects(quire("ledger", "delete", ledger, "--yes", "--json")) == [
        {"ledger_id": int(ledger), "deleted": True}
    ]
    gone = quire("ledger", "read", ledger, code=1)
    assert gone.stderr.startswith(f"ledger {ledger} does not exist")
    assert gone.stdout == ""


def test_a_ledger_guarantees_its_write_quorum_as_long_as_nobody_gives_that_up(quire: Quire) -> None:
    guaranteed = "--guarantee", "write-quorum", "--json"
    ledger = str(objects(quire("ledger", "append", *guaranteed, given=b"a\nb\n"))[0]["ledger_id"])
    assert "its write quorum is guaranteed" in quire("ledger", "show", ledger).stdout
    verified = objects(quire("ledger", "verify", ledger, "--json"))[0]
    assert verified["complete"]
    assert verified["below_write_quorum"] == []
    left = str(objects(quire("ledger", "create", "--leave-open", *guaranteed))[0]["ledger_id"])
    quire("ledger", "recover", left, "--at", "ack-quorum", "--yes")
    assert "its guaranteed write quorum was waived" in quire("ledger", "show", left).stdout
    said = error_of(quire("ledger", "create", "--guarantee", "all", "--json", code=2))
    assert said["message"] == "the guarantee of a ledger is 'write_quorum' or None, not 'all'"


def test_a_log_whose_ledgers_guarantee_their_write_quorum(quire: Quire) -> None:
    before = {each["ledger_id"] for each in objects(quire("ledger", "list", "--json"))}
    quire("log", "create", "guaranteed")
    quire("log", "append", "guaranteed", "--guarantee", "write-quorum", given=b"a\nb\n")
    (made,) = {each["ledger_id"] for each in objects(quire("ledger", "list", "--json"))} - before
    assert "its write quorum is guaranteed" in quire("ledger", "show", str(made)).stdout
    said = error_of(
        quire("log", "append", "guaranteed", "--guarantee", "all", "--json", given=b"c\n", code=2)
    )
    assert said["message"] == "--guarantee takes write-quorum, not 'all'."
    quire("log", "delete", "guaranteed", "--yes")


def test_an_empty_ledger(quire: Quire) -> None:
    made = objects(quire("ledger", "create", "--json"))[0]
    assert (made["entries"], made["last_entry"], made["state"]) == (0, -1, "closed")
    assert quire("ledger", "read", str(made["ledger_id"])).stdout == ""
    assert quire("ledger", "read", str(made["ledger_id"]), "--last", "5").stdout == ""
    for reading in ("read", "tail"):
        refused = quire("ledger", reading, str(made["ledger_id"]), "--first", "1", "--json", code=1)
        assert error_of(refused)["code"] == "past_end"


def test_a_log_from_its_creation_to_its_truncation(quire: Quire) -> None:
    assert objects(quire("log", "create", "orders", "--json")) == [{"log": "orders", "created": True}]
    assert error_of(quire("log", "create", "orders", "--json", code=1))["code"] == "already_exists"
    first = objects(quire("log", "append", "orders", "--json", given=LINES))[0]
    assert (first["records"], first["first_offset"], first["last_offset"]) == (5000, 0, 4999)
    second = objects(quire("log", "append", "orders", "--json", given=b"more\n"))[0]
    assert second["first_offset"] == 5000
    assert quire("log", "read", "orders").stdout_bytes == LINES + b"more\n"
    records = objects(quire("log", "read", "orders", "--start", "4999", "--json"))
    assert [(record["offset"], record["value"], record["key"]) for record in records] == [
        (4999, "line 4999", None),
        (5000, "more", None),
    ]
    shown = objects(quire("log", "show", "orders", "--json"))[0]
    assert (shown["start_offset"], shown["end_offset"], len(shown["items"])) == (0, 5001, 2)
    assert (
        error_of(quire("log", "truncate", "orders", "--before", "5000", "--json", code=2))["code"] == "misuse"
    )
    quire("log", "truncate", "orders", "--before", "5000", "--yes")
    assert quire("log", "read", "orders").stdout_bytes == b"more\n"
    assert "first readable offset 5,000" in quire("log", "show", "orders").stdout
    assert objects(quire("log", "list", "--json"))[0]["end_offset"] == 5001
    assert error_of(quire("log", "read", "orders", "--start", "7", "--json", code=1))["code"] == "trimmed"
    assert error_of(quire("log", "read", "orders", "--start", "9999", "--json", code=1))["code"] == "past_end"
    assert quire("log", "read", "orders", "--follow", "--end", "5001").stdout_bytes == b"more\n"
    assert quire("log", "read", "orders", "--end", "9999").stdout_bytes == b"more\n"
    wrong = quire("log", "read", "orders", "--start", "5000", "--end", "3", "--json", code=2)
    assert error_of(wrong)["code"] == "misuse"


def test_rolling_closes_what_was_written(quire: Quire) -> None:
    quire("log", "create", "rolled")
    quire("log", "append", "rolled", given=b"1\n2\n")
    rolled = objects(quire("log", "roll", "rolled", "--json"))[0]
    assert all(item["state"] == "closed" for item in rolled["items"])
    assert rolled["end_offset"] == 2


SOME = b"".join(b"line %d\n" % number for number in range(50))


def test_a_stream_from_its_creation_to_its_end(quire: Quire) -> None:
    made = objects(quire("stream", "create", "clicks", "--json"))[0]
    assert (made["stream"], made["created"]) == ("clicks", True)
    assert error_of(quire("stream", "create", "clicks", "--json", code=1))["code"] == "already_exists"
    acknowledged = objects(quire("stream", "append", "clicks", "--json", given=SOME))
    assert acknowledged == [{"stream": "clicks", "entry_id": n, "term": 2} for n in range(50)]
    assert "1 entry, 4 B, at entries 50..50" in quire("stream", "append", "clicks", given="more\n").stdout
    last = objects(quire("stream", "append", "clicks", "--elect", "--json", given="last\n"))
    assert last == [{"stream": "clicks", "entry_id": 51, "term": 4}]
    assert quire("stream", "read", "clicks").stdout_bytes == SOME + b"more\nlast\n"
    read = objects(quire("stream", "read", "clicks", "--first", "50", "--last", "50", "--json"))
    assert [(entry["entry_id"], entry["payload"]) for entry in read] == [(50, "more")]
    assert (
        error_of(quire("stream", "read", "clicks", "--first", "9999", "--json", code=1))["code"] == "past_end"
    )
    verified = objects(quire("stream", "verify", "clicks", "--json"))[0]
    assert (verified["stream"], verified["complete"], verified["entries"]) == ("clicks", True, 52)
    assert objects(quire("stream", "repair", "clicks", "--json"))[0]["outcome"] == "whole"
    assert error_of(quire("stream", "repair", "clock", "--json", code=1))["code"] == "no_such_stream"
    counted = objects(quire("ledger", "verify", "--all", "--json"))[-1]
    assert (counted["complete"] > 0, counted["incomplete"], counted["failed"]) == (True, 0, 0)
    taken = objects(quire("stream", "take-over", "clicks", "--json"))[0]
    assert (taken["term"], taken["last_entry"]) == (5, 51)
    shown = objects(quire("stream", "show", "clicks", "--json"))[0]
    assert (shown["state"], shown["term"], shown["last_add_confirmed"]) == ("open", 5, 51)
    wrote = [(each["term"], each["first_entry"], each["last_entry"]) for each in shown["ranges"]]
    assert wrote == [(1, 0, -1), (2, 0, 49), (3, 50, 50), (4, 51, 51), (5, 52, 51)]
    text = quire("stream", "show", "clicks").stdout
    assert "term 2: entries 0..49" in text
    assert "term 5: nothing" in text
    assert [row["stream"] for row in objects(quire("stream", "list", "--json"))] == ["clicks"]
    by_id = str(made["ledger_id"])
    assert objects(quire("ledger", "show", by_id, "--json")) == [shown]
    assert quire("ledger", "show", by_id).stdout == text
    assert objects(quire("ledger", "verify", by_id, "--json")) == [verified]
    assert quire("ledger", "verify", by_id).stdout.startswith(f"Stream clicks (ledger {by_id}) is good")
    assert error_of(quire("stream", "close", "clicks", "--json", code=2))["code"] == "misuse"
    closed = objects(quire("stream", "close", "clicks", "--yes", "--json"))[0]
    assert closed["last_entry"] == 51
    assert quire("stream", "tail", "clicks", "--first", "50").stdout_bytes == b"more\nlast\n"
    assert (
        error_of(quire("stream", "append", "clicks", "--json", given="x\n", code=1))["code"]
        == "stream_closed"
    )
    quire("stream", "delete", "clicks", "--yes")
    assert "unknown mode 'both'" in quire("stream", "create", "clicks", "--mode", "both", code=2).stderr
    made = objects(quire("stream", "create", "clicks", "--mode", "fencing", "--json"))[0]
    assert (made["mode"], made["created"]) == ("fencing", True)
    quire("stream", "append", "clicks", given="one\ntwo\n")
    quire("stream", "take-over", "clicks")
    assert quire("stream", "read", "clicks").stdout == "one\ntwo\n"
    read = objects(quire("stream", "read", "clicks", "--json"))
    assert [(each["entry_id"], each.get("no_op", False)) for each in read] == [
        (0, True), (1, False), (2, False), (3, True),
    ]  # fmt: skip
    shown = objects(quire("stream", "show", "clicks", "--json"))[0]
    assert (shown["mode"], shown["waits_for"]) == ("fencing", {})
    assert "its terms only fence" in quire("stream", "show", "clicks").stdout
    quire("stream", "delete", "clicks", "--yes")
    assert "quire stream create" in quire("stream", "read", "clicks", code=1).stderr
    assert "No streams." in quire("stream", "list").stderr


def test_what_is_missing_is_said_with_the_command_that_helps(quire: Quire) -> None:
    missing = quire("log", "read", "nothing", code=1)
    assert "quire log create" in missing.stderr
    assert error_of(quire("log", "show", "nothing", "--json", code=1))["code"] == "no_such_log"


def test_the_cluster_says_how_it_is(quire: Quire, cluster: LocalCluster) -> None:
    status = objects(quire("cluster", "status", "--json"))[0]
    assert status["cluster"] == cluster.uri
    assert status["bookies"] == {"up": 3, "read-only": 0, "silent": 0, "down": 0}
    rows = objects(quire("cluster", "bookies", "--json"))
    assert [(row["id"], row["address"], row["answers"]) for row in rows] == [
        (bookie.id, bookie.address, "ok") for bookie in cluster.bookies
    ]
    assert all(row["protocol"].startswith("native ") for row in rows)
    assert "3 up" in quire("cluster", "status").stdout
    assert status["conditions"] == {}
    assert [row["conditions"] for row in rows] == [[], [], []]


def test_load_is_measured(quire: Quire) -> None:
    for what in ("append", "latency"):
        result = objects(quire("bench", what, "--seconds", "0.3", "--json"))[0]
        assert result["entries"] > 0
        assert result["latency"]["count"] == result["entries"]
    assert "<= " in quire("bench", "latency", "--seconds", "0.2").stdout


def test_a_recorded_load_is_judged(quire: Quire, tmp_path: Path) -> None:
    file = str(tmp_path / "history.jsonl")
    quorums = ("-E", "3", "-w", "2", "-a", "2")
    result = objects(quire("bench", "append", "--seconds", "0.3", "--json", "--history", file, *quorums))[0]
    verdict = objects(quire("verify-history", file, "--json"))[-1]
    assert verdict["verdict"] == "holds"
    assert verdict["checked"]["9"] == result["entries"]
    assert verdict["checked"]["1"] >= 2 * result["entries"]
    lines = Path(file).read_text().splitlines(keepends=True)
    spoiled = [line for line in lines if '"event":"ok"' not in line or '"kind":"append"' not in line]
    unacknowledged = quire("verify-history", "-", given="".join(spoiled))
    assert "not looked at" in unacknowledged.stdout
    read = next(index for index, line in enumerate(lines) if '"kind":"read"' in line and '"ok"' in line)
    digit = lines[read].index('"hashes":"') + 20
    other = "0" if lines[read][digit] != "0" else "1"
    lines[read] = lines[read][:digit] + other + lines[read][digit + 1 :]
    assert "invariant 1 " in quire("verify-history", "-", given="".join(lines), code=1).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (("ledger", "append", "-w", "4"), "invalid_quorum", 2),
        (("ledger", "append", "-E", "5", "-w", "3"), "not_enough_bookies", 1),
        (("ledger", "append", "--min-present", "1"), "invalid_quorum", 2),
        (("log", "create", "x", "--min-present", "4"), "invalid_quorum", 2),
        (("ledger", "append", "--digest", "md5"), "misuse", 2),
        (("ledger", "read", "999999"), "no_such_ledger", 1),
        (("ledger", "read", "many"), "usage", 2),
        (("ledger", "show"), "usage", 2),
        (("ledger", "unknown"), "usage", 2),
        (("cluster", "repair", "--rate", "inf"), "usage", 2),
        (("autorecovery", "--rate", "inf"), "usage", 2),
        (("cluster", "health", "--timeout", "inf"), "usage", 2),
        (("bookie", "space", "--timeout", "inf"), "usage", 2),
        (("bookie", "--dir", "none", "--collect-every", "inf"), "misuse", 2),
        (("bookie", "--dir", "none", "--listen", "host:²"), "misuse", 2),
        (("up", "--dir", "none", "--port", "65535", "--bookies", "2"), "misuse", 2),
        (("cluster", "orphans", "--delete", f"0-{2**63 - 1}", "--yes"), "misuse", 2),
        (("cluster", "orphans", "--delete", "9" * 5000, "--yes"), "misuse", 2),
        (("cluster", "status", "--cluster", "~nobody-here/x"), "no_cluster", 1),
        (("cluster", "status", "--cluster", "sqlite:~nobody-here/x"), "no_cluster", 1),
        (("log", "append", "x"), "no_such_log", 1),
        (("log", "append", "x", "hello", "-"), "os", 1),
        (("stream", "append", "x"), "no_such_stream", 1),
        (("stream", "create", "a//b"), "misuse", 2),
        (("ledger", "append", "/no/such/file"), "os", 1),
        (("cluster", "status", "--cluster", "sqlite:/no/such/file"), "no_cluster", 1),
        (("cluster", "status", "--cluster", "zk://localhost/x?patience_ms=500"), "no_cluster", 1),
        (("cluster", "status", "--cluster", "nonsense"), "no_cluster", 1),
    ],
)
def test_errors_in_json(quire: Quire, arguments: tuple[str, ...], code: str, exit_code: int) -> None:
    error = error_of(quire(*arguments, "--json", code=exit_code))
    assert error["code"] == code
    assert error["message"]


def test_a_level_of_the_log_that_is_none_is_refused(quire: Quire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_LOG_LEVEL", "loud")
    for command in (("bookie", "--dir", "none"), ("autorecovery",)):
        assert "QUIRE_LOG_LEVEL is 'LOUD': use one of" in quire(*command, code=2).stderr
    assert (
        serve.main(["--dir", "none", "--cluster", "memory:x", "--name", "b"]),
        recovering.main(["--cluster", "memory:x"]),
    ) == (2, 2)


def test_without_a_cluster_the_way_to_name_one_is_said(tmp_path: Path) -> None:
    result = CliRunner(env={"QUIRE_CLUSTER": None, "XDG_CONFIG_HOME": str(tmp_path)}).invoke(
        app, ["cluster", "status"]
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("No cluster is named. `quire up` starts one")


@pytest.mark.parametrize("command", ["log append greetings", "stream append clicks", "ledger append"])
def test_records_that_are_typed_as_arguments(quire: Quire, command: str) -> None:
    said = quire(*command.split(), "hello", "you", code=2).stderr
    assert f"records come from standard input or files: echo 'hello you' | quire {command}\n" in said


def test_an_append_makes_its_log_once(quire: Quire) -> None:
    for record in (b"first\n", b"second\n"):
        quire("log", "append", "made", "--create", given=record)
    assert quire("log", "read", "made").stdout_bytes == b"first\nsecond\n"


def test_help_names_every_command_and_the_exit_codes() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    for name in ("up", "demo", "bookie", "ledger", "log", "cluster", "bench", "Exit codes"):
        assert name in text


def test_help_does_not_load_what_commands_need() -> None:
    import subprocess

    script = (
        "import sys\nfrom quire.cli.main import app\n"
        "heavy = {'pyarrow', 'pyspark', 'quire.client', 'quire.log', 'rich', 'uvloop', 'google.protobuf'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


def test_a_longer_frame_takes_longer_records_at_both_ends(quire: Quire, tmp_path: Path) -> None:
    record = b"r" * (6 * 1024 * 1024)
    longer = "--frame-bytes-max", str(8 * 1024 * 1024)
    said = error_of(quire("ledger", "append", "--json", given=record, code=1))["message"]
    assert "--frame-bytes-max" in said
    # The cluster's bookies take 8 MiB of our own protocol's frames by default, and the client no more over V2 and V3.
    said = error_of(quire("ledger", "append", "--frame-bytes-max", "6000000", "--json", given=record, code=1))
    assert "--frame-bytes-max" in said["message"]
    ledger = str(objects(quire("ledger", "append", *longer, "--json", given=record))[0]["ledger_id"])
    assert quire("ledger", "read", ledger, *longer).stdout_bytes == record + b"\n"
    assert objects(quire("ledger", "verify", ledger, *longer, "--json"))[0]["good"]
    said = error_of(quire("ledger", "read", ledger, "--frame-bytes-max", "100000", "--json", code=1))
    assert "the limit of this client is 132768" in said["message"]
    quire("log", "create", "long")
    quire("log", "append", "long", *longer, given=record)
    assert quire("log", "read", "long", *longer).stdout_bytes == record + b"\n"


@pytest.mark.parametrize("command", ["bookie", "ledger"])
def test_a_limit_of_frames_that_cannot_be_is_refused(quire: Quire, tmp_path: Path, command: str) -> None:
    words = ["bookie", "--dir", str(tmp_path / "b")] if command == "bookie" else ["ledger", "read", "1"]
    said = error_of(quire(*words, "--frame-bytes-max", "5", "--json", code=2))
    assert "--frame-bytes-max must be an integer from 65536 to " in said["message"]
    assert not (tmp_path / "b").exists()


def test_the_bookies_of_up_have_its_limit_of_frames(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 1, frame_bytes_max=1 << 19) as local:
        done = CliRunner(env={"QUIRE_CLUSTER": local.uri}).invoke(
            app, ["ledger", "append", *["-E1", "-w1", "-a1", "--json"]], input=b"x" * (1 << 20)
        )
        assert done.exit_code != 0
        assert f"the limit is {(1 << 19) + 32768}" in local.bookies[0].log.read_text()
