"""What docs/cli-tour.md does, in order: headings with a few words, and command lines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """Text between two blocks, in Markdown."""

    text: str


@dataclass(frozen=True)
class Step:
    """A command line.

    Attributes:
        line: as it is typed, and shown.
        until: what it must have printed before Ctrl-C is pressed; "": it ends by itself.
        before: run first, not shown.
        after: run behind it, not shown either.
        columns: of the terminal at which it is typed; 0: its output goes to a pipe.
    """

    line: str
    until: str = ""
    before: str = ""
    after: str = ""
    columns: int = 0


def _steps(*lines: str) -> list[Step]:
    return [Step(line) for line in lines]


WITH_ASYNCIO = """
cat > with_asyncio.py <<'END'
import asyncio
import quire


async def main() -> None:
    async with quire.connect() as client:
        await client.log("nothing").describe()


asyncio.run(main())
END
"""
TLS_CLUSTER = """
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 \\
  -keyout secure.key -out secure.pem 2>/dev/null
printf '[tls]\\ncertificate = "secure.pem"\\nkey = "secure.key"\\n' > bookie.toml
printf '[tls]\\nca = "secure.pem"\\n' > client.toml
quire up --dir secure --bookies 1 --security bookie.toml > secure.txt 2>&1 & echo $! > secure.pid
until grep -qs Ctrl-C secure.txt; do sleep 0.1; done
"""
"""A cluster of one bookie with TLS, beside the other one."""
CLEAR_SERVER = """
python3 -c "import http.server as h; s = h.ThreadingHTTPServer(('127.0.0.1', 0), h.BaseHTTPRequestHandler); \\
print('127.0.0.1:%d' % s.server_port, flush=True); s.serve_forever()" > clear.txt 2>/dev/null & echo $! > clear.pid
until [ -s clear.txt ]; do sleep 0.1; done
"""
"""A server that knows no TLS."""

STEPS: list[Heading | Step] = [
    Heading(
        "## A cluster\n\n`quire up` runs a whole cluster on this machine until Ctrl-C. All that follows uses one that was started "
        "with\n`quire up --dir data`, which `QUIRE_CLUSTER` names. A directory that is in use, or too many bookies for the room:"
    ),
    Step("quire up --dir other", until="A second start continues", before="unset QUIRE_CLUSTER"),
    *_steps("quire up --dir data", "quire up --dir data/bookie-1", "quire up --dir other --bookies 1"),
    Heading("`quire bookie` runs one bookie in the foreground, on a machine of its own."),
    *_steps(
        "quire bookie --dir lone --listen 0.0.0.0:3181",
        "quire bookie --dir lone --listen here",
    ),
    Heading("## Which cluster\n\nA URI, a directory, or a name; before the command, or after it."),
    *_steps(
        "quire context add here data --use",
        "quire context add production zk://me:secret@zk1:2181/ledgers",
        "quire context list",
        "quire --cluster here log list",
        "quire context use nowhere",
        "quire context remove production",
        "quire context list --json",
        "quire log list --cluster elsewhere",
        "quire log list --cluster ./elsewhere",
    ),
    Step("quire log list", before="unset QUIRE_CLUSTER; quire context use --none >/dev/null"),
    *_steps("quire --json cluster health", "quire cluster --timeout 3 health"),
    Heading("## How the cluster is"),
    *_steps("quire cluster status", "quire cluster health", "quire cluster bookies", "quire top --once"),
    Step("quire cluster bookies", columns=60),
    Step("quire cluster health --cluster sqlite:/no/such/file"),
    Step("quire log list --cluster zk://127.0.0.1:1/ledgers"),
    Step("quire cluster health --json --timeout 3 --cluster zk://127.0.0.1:1/ledgers"),
    Heading("## Logs\n\nWrite and read records."),
    *_steps(
        "quire log create orders",
        "quire log create orders",
        "printf 'one\\ntwo\\nthree\\n' | quire log append orders",
        "quire log append orders --key customer-7 --header source=web <<< four",
        "quire log read orders",
        "quire log read orders --last 2 --json",
        "quire log read orders --start 3 -f '%o %k %s\\n'",
        "quire log read orders --start 99",
        "quire log read order",
        "quire log append order <<< five",
        "quire log append orders missing.txt",
        "quire log read orders --start 1,180",
        "quire log read orders --start 1,18",
        "quire log create orders//2026",
    ),
    Step("quire log tail orders", until="four"),
    Heading("What there is, and what it is made of."),
    *_steps(
        "quire log list", "quire log show orders", "quire log cursors orders", "quire log alter orders -a 3"
    ),
    Heading("Copies, files, and an end."),
    *_steps(
        "quire log copy orders copied",
        "quire log copy orders copied",
        "quire log export orders orders.jsonl",
        "quire log import imported orders.jsonl",
        "quire log import imported orders.jsonl --create",
        "quire log roll orders",
        "quire log truncate orders --before 2",
        "quire log read orders --start 0",
        "quire log place orders",
        "quire log collect",
        "quire log delete copied",
        "quire log delete copied --yes",
    ),
    Heading("## Ledgers\n\nWhat logs are made of, one at a time."),
    *_steps(
        "quire ledger create",
        "printf 'a\\nb\\n' | quire ledger append",
        "quire ledger list",
        "quire ledger read 7",
        "quire ledger read 7 --first 1 --json",
        "quire ledger read 7 --first 9",
        "quire ledger read 7 --first 0 --last 0",
        "quire ledger read 999",
        "quire ledger read many",
        "quire ledger read 1,007",
        "quire ledger show 7",
        "quire ledger tail 7",
        "quire ledger verify 7",
        "quire ledger verify --all",
        "quire ledger repair 7",
        "quire ledger recover 7",
        "quire ledger append -w 4 < /dev/null",
        "quire ledger append -E 5 < /dev/null",
        "quire ledger delete 7",
        "quire ledger delete 7 --yes",
    ),
    Heading("## Streams\n\nA ledger without an end, which clients write in turn: unbounded ledgers."),
    *_steps(
        "quire stream create clicks",
        "quire stream create clicks",
        "printf 'one\\ntwo\\n' | quire stream append clicks",
        "printf 'three\\nfour\\n' | quire stream append clicks --json",
        "quire stream read clicks",
        "quire stream read clicks --first 2 --json",
        "quire stream read clicks --first 9",
        "quire stream take-over clicks",
        "quire stream list",
        "quire stream show clicks",
        "quire stream append click < /dev/null",
        "quire stream create ../clicks",
        "quire stream close clicks --yes",
        "quire stream tail clicks",
        "quire stream verify clicks",
        "quire stream repair clicks",
        "printf 'five\\n' | quire stream append clicks",
        "quire stream delete clicks --yes",
    ),
    Heading(
        "The other design, [terms that only fence](protocol/streams.md#terms-that-only-fence): a take-over takes an id."
    ),
    *_steps(
        "quire stream create visits --mode fencing",
        "printf 'one\\ntwo\\n' | quire stream append visits",
        "quire stream read visits --json",
        "quire stream show visits",
        "quire stream delete visits --yes",
    ),
    Heading("## Keeping a cluster"),
    *_steps(
        "quire cluster under-replication",
        "quire cluster repair --dry-run",
        "quire cluster repair --rate 50",
        "quire cluster repair --bookie bookie-9",
        "quire cluster repairs",
        "quire cluster lost-delay",
        "quire cluster lost-delay 600",
        "quire cluster autorecovery status",
        "quire cluster autorecovery off",
        "quire cluster autorecovery on",
    ),
    Step("quire autorecovery --rate 50", until="Ctrl-C stops it."),
    *_steps(
        "quire bookie forget bookie-9",
        "quire bookie space --bookie bookie-9",
        "quire bookie collect",
        "quire bookie compact --now --bookie bookie-9",
        "quire ledger repair 999",
        "quire cluster orphans",
        "quire cluster orphans --delete",
        "quire cluster accept-store --yes",
        "quire metadata format",
        "quire metadata format --cluster sqlite:new.db",
    ),
    Heading(
        "## Scripts\n\nErrors are JSON on stderr with `--json`; a reader that goes, or a full disk, is no traceback."
    ),
    *_steps(
        "quire log read nothing --json",
        "quire log read nothing",
        "quire cluster status > /dev/full",
        "quire log read orders 2> /dev/null | head -1",
        "quire --version",
    ),
    Heading("## Words that are not quite right\n\nThe command, or the option, that is meant."),
    *_steps(
        "quire list",
        "quire append orders",
        "quire status",
        "quire help",
        "quire help log append",
        "quire log lsit",
        "quire frobnicate",
        "quire log read orders --strat 1",
        "quire log read orders --frobnicate",
    ),
    Heading("A log that the cluster has no room for is made, with a warning."),
    *_steps(
        "quire log create wide -E 5",
        "quire log append wide <<< one",
        "quire log alter wide -E 3 -w 3 -a 2",
        "quire log append wide <<< one",
    ),
    Heading("In Python the same error has Python's words: those of `quire.blocking`, and of asyncio."),
    Step("python3 -c 'import quire.blocking as q; q.connect().log(\"nothing\").describe()' 2>&1 | tail -1"),
    Step("python3 with_asyncio.py 2>&1 | tail -1", before=WITH_ASYNCIO),
    Heading(
        "## A cluster with TLS\n\nA client in clear text at a cluster that takes only TLS ([security.md](security.md)), and one with "
        "the file that\n`QUIRE_SECURITY` names. And etcd's URI with TLS at a server that has none."
    ),
    Step(
        "printf 'a\\n' | quire ledger append --cluster secure -E 1 -w 1 -a 1",
        before=TLS_CLUSTER,
    ),
    Step(
        "printf 'a\\n' | QUIRE_SECURITY=client.toml quire ledger append --cluster secure -E 1 -w 1 -a 1",
        after="kill -TERM $(cat secure.pid); while kill -0 $(cat secure.pid) 2>/dev/null; do sleep 0.1; done",
    ),
    Step(
        'quire cluster health --timeout 3 --cluster "etcd://$(cat clear.txt)/ledgers?tls_ca=secure.pem"',
        before=CLEAR_SERVER,
        after="kill $(cat clear.pid)",
    ),
    Heading(
        "## Load, tests, Spark\n\n`quire demo` shows the main job in half a minute; `check`, `simulate` and `verify-history` are in the "
        "package quire-log-testing;\n[spark-jobs.md](spark-jobs.md) has the jobs."
    ),
    *_steps(
        "quire demo --input nothing-here",
        "quire bench append --seconds 0",
        "quire bench append --seconds 0.2 | head -2",
        "quire bench latency --seconds soon",
        "quire check --seconds many",
        "quire simulate --mix nothing",
        "quire verify-history missing.jsonl",
        "quire spark run nothing",
        "quire spark doctor --help | head -5",
    ),
]
