"""Sessions with ZooKeeper that never come about."""

from __future__ import annotations

import asyncio
import threading

from quire.metadata.zookeeper import ZookeeperStore
from quire.metadata.zookeeper_options import ZookeeperAddress
from support.waiting import until_async


def test_an_opening_that_is_cancelled_leaves_no_thread_behind() -> None:
    async def scenario() -> None:
        before = set(threading.enumerate())

        def more() -> list[threading.Thread]:
            return [
                thread
                for thread in threading.enumerate()
                if thread not in before and "asyncio" not in thread.name
            ]

        opening = asyncio.ensure_future(ZookeeperStore.open(ZookeeperAddress(("127.0.0.1:1",), "/ledgers")))
        await until_async(more, "kazoo to try")
        opening.cancel()
        await asyncio.wait({opening})
        assert opening.cancelled()
        await until_async(lambda: not more(), "kazoo to end", 10)

    asyncio.run(scenario())
