"""A log's writer is entered or awaited, and makes the log only if it is told to.

Source: docs/protocol/log.md.
"""

from __future__ import annotations

import pytest

from quire.core.errors import AlreadyExistsError, InvalidQuorumError, MisuseError, NoSuchLogError
from quire.core.log.list import LogSettings
from support.log_cluster import World, values

SMALL = LogSettings(2, 2, 2)


async def test_a_writer_is_entered_or_awaited(at: World) -> None:
    log = at.log("orders")
    async with log.open_writer(create=SMALL) as writer:
        await writer.append(b"one")
    writer = await log.open_writer()
    await writer.append(b"two")
    await writer.close()
    assert await values(log) == [b"one", b"two"]
    assert (await log.identify()).settings == SMALL


async def test_nothing_makes_a_log_without_being_told_to(at: World) -> None:
    with pytest.raises(NoSuchLogError, match="'ordres' does not exist"):
        await at.log("ordres").open_writer()
    assert not await at.log("ordres").exists()


async def test_one_that_is_there_stays_as_it_is_and_must_have_the_settings_that_are_named(at: World) -> None:
    log = at.log("orders")
    await log.create(ensemble_size=2, write_quorum=2, ack_quorum=1)
    made = await log.identify()
    await log.create(exist_ok=True)
    await log.create(exist_ok=True, write_quorum=2)
    async with log.open_writer(create=True):
        pass
    with pytest.raises(AlreadyExistsError, match="ensemble_size=2, not 3"):
        await log.create(exist_ok=True, ensemble_size=3)
    with pytest.raises(AlreadyExistsError, match="ack_quorum=1, not 2"):
        await log.open_writer(create=SMALL)
    with pytest.raises(AlreadyExistsError, match="append to it"):
        await log.create()
    found = await log.identify()
    assert (found.log_id, found.settings) == (made.log_id, made.settings)


async def test_what_cannot_be_made_is_refused(at: World) -> None:
    log = at.log("orders")
    with pytest.raises(InvalidQuorumError, match="at least the ack quorum"):
        await log.open_writer(create=LogSettings(3, 2, 3))
    with pytest.raises(MisuseError, match="digest"):
        await log.create(digest="sha")
    assert not await log.exists()


async def test_a_log_that_is_being_deleted_is_not_made_again_by_an_append(at: World) -> None:
    log = at.log("orders")
    await log.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
    found = await log._heads.read((await log.identify()).log_id)
    assert found is not None
    await log._heads.write(found[0].with_deletion(5), found[1])
    with pytest.raises(NoSuchLogError, match="is being deleted"):
        await log.open_writer(create=True)
    await log.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
    assert await log.exists()
