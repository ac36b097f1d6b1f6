"""Changes the settings of a log: the quorums of the ledgers that it will have.

One compare-and-swap of the head, with a running writer or without one. Ledgers that exist keep what they were made with; a
running writer uses the settings for its next ledger once it has read the head again.

Source: docs/formats/log-list.md.
"""

from __future__ import annotations

from dataclasses import replace

from quire.client.client import Client
from quire.core.errors import MetadataUnknownError
from quire.core.ledger.quorum import check_min_present, check_quorums
from quire.core.log.list import LogSettings
from quire.log.heads import LogHeads
from quire.log.log import Log
from quire.metadata.retries import ATTEMPTS_MAX, StoreRetries
from quire.metadata.store import KeyMissingError


async def alter_log(
    client: Client,
    name: str,
    *,
    ensemble_size: int | None = None,
    write_quorum: int | None = None,
    ack_quorum: int | None = None,
    min_present: int | None = None,
) -> tuple[LogSettings, LogSettings]:
    """Change settings of a log; what is None stays.

    Args:
        client: the cluster.
        name: the log.
        ensemble_size: E of the log's next ledgers, like `write_quorum` Qw and `ack_quorum` Qa.
        min_present: how many bookies of a new ledger must be there; 0: the creator of the ledger decides.

    Returns:
        The settings before and after.

    Raises:
        NoSuchLogError: there is no such log.
        InvalidQuorumError: unless E >= Qw >= Qa >= 1 and E >= `min_present` >= Qa hold afterwards.
    """
    heads = LogHeads(client.store)
    log = Log(client, name)
    before: LogSettings | None = None

    async def once() -> tuple[LogSettings, LogSettings]:
        nonlocal before
        log_id = (await log.identify()).log_id
        found = await heads.read(log_id)
        if found is None:
            msg = f"log {name!r} was deleted meanwhile"
            raise KeyMissingError(msg, log=name)  # `identify` says so now
        head, version = found
        old = head.settings
        new = replace(
            old,
            ensemble_size=old.ensemble_size if ensemble_size is None else ensemble_size,
            write_quorum=old.write_quorum if write_quorum is None else write_quorum,
            ack_quorum=old.ack_quorum if ack_quorum is None else ack_quorum,
            min_present=old.min_present if min_present is None else min_present,
        )
        check_quorums(new.ensemble_size, new.write_quorum, new.ack_quorum)
        if new.min_present:
            check_min_present(new.min_present, new.ensemble_size, new.ack_quorum)
        if new == old:
            return before or old, new
        try:
            await heads.write(replace(head, settings=new, generation=head.generation + 1), version)
        except MetadataUnknownError:
            before = old  # the head, read again, shows whether this was written
            raise
        return old, new

    return await StoreRetries(ATTEMPTS_MAX).until_in(once)
