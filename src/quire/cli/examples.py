"""Examples below each command's help. A test parses every line, so that none outlives what it shows."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "up": (
        "quire up",
        "quire up --dir /tmp/quire --bookies 5",
        "quire up --dir more --cluster zk://host:2181/ledgers",
    ),
    "demo": ("quire demo", "quire demo --input access.log --dir /tmp/demo"),
    "bookie": (
        "quire bookie --dir /data/b1 --cluster zk://host:2181/ledgers --listen 0.0.0.0:3181 --advertise b1:3181",
    ),
    "top": ("quire top", "quire top --once", "quire top --json --interval 10 > states.jsonl"),
    "check": ("quire check",),
    "simulate": ("quire simulate --seed 7",),
    "verify-history": ("quire verify-history history.jsonl",),
    "ledger create": ("quire ledger create", "quire ledger create -E 5 -w 3 -a 2"),
    "ledger append": (
        "printf 'one\\ntwo\\n' | quire ledger append",
        "quire ledger append --digest mac < lines.txt",
    ),
    "ledger read": ("quire ledger read 17", "quire ledger read 17 --first 100 --last 199 --json"),
    "ledger tail": ("quire ledger tail 17",),
    "ledger list": ("quire ledger list", "quire ledger list --json | jq .ledger_id"),
    "ledger show": ("quire ledger show 17",),
    "ledger verify": ("quire ledger verify 17", "quire ledger verify --all"),
    "ledger repair": ("quire ledger repair 17 --dry-run", "quire ledger repair 17 --accept-loss losses.txt"),
    "ledger recover": ("quire ledger recover 17",),
    "ledger delete": ("quire ledger delete 17", "quire ledger delete 17 --yes"),
    "log create": ("quire log create orders", "quire log create orders -E 5 -w 3 -a 2"),
    "log append": (
        "printf 'one\\ntwo\\n' | quire log append orders",
        "quire log append orders lines.txt -k customer-7 -H source=import",
        "quire log read orders --format json | quire log append copy --format json",
    ),
    "log read": (
        "quire log read orders",
        "quire log read orders --last 10 --json",
        "quire log read orders --from-time -1h -f '%o %T %k %s\\n'",
    ),
    "log tail": ("quire log tail orders",),
    "log copy": (
        "quire log copy orders orders-2",
        "quire log copy orders orders --to zk://other:2181/ledgers",
    ),
    "log export": (
        "quire log export orders orders.jsonl",
        "quire log export orders orders.parquet --last 1000",
    ),
    "log import": ("quire log import orders orders.jsonl --create",),
    "log alter": ("quire log alter orders -E 5 -w 3 -a 2",),
    "log delete": ("quire log delete orders",),
    "log list": ("quire log list",),
    "log show": ("quire log show orders",),
    "log roll": ("quire log roll orders",),
    "log truncate": ("quire log truncate orders --before 1000",),
    "log cursors": ("quire log cursors orders",),
    "log place": ("quire log place orders",),
    "log collect": ("quire log collect", "quire log collect --every 3600"),
    "cluster bookies": ("quire cluster bookies", "quire cluster bookies --json | jq .version"),
    "cluster status": ("quire cluster status", "quire --cluster production cluster status"),
    "cluster health": ("quire cluster health || page-somebody", "quire cluster health --json --timeout 2"),
    "cluster debt": ("quire cluster debt", "quire cluster debt --json | jq .entries"),
    "cluster repair": ("quire cluster repair --dry-run", "quire cluster repair --bookie b3.x7k2pq --rate 50"),
    "cluster orphans": ("quire cluster orphans", "quire cluster orphans --delete 17 20-25"),
    "cluster accept-store": ("quire cluster accept-store",),
    "cluster upgrade": ("quire cluster upgrade",),
    "context add": (
        "quire context add production zk://zk1:2181,zk2:2181/ledgers --use",
        "quire context add here /tmp/quire",
    ),
    "context use": ("quire context use production", "quire context use --none"),
    "context list": ("quire context list",),
    "context remove": ("quire context remove here",),
    "metadata format": (
        "quire metadata format --cluster sqlite:/data/quire/metadata.db",
        "quire metadata format --cluster zk://host:2181/ledgers",
    ),
    "bench append": ("quire bench append --seconds 10",),
    "bench latency": ("quire bench latency --seconds 10",),
    "spark run": ("quire spark run", "quire spark run scrub --help"),
    "spark doctor": ("quire spark doctor",),
}
"""Lines to type, by the command's words."""
