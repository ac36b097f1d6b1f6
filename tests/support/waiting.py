"""Waiting for a condition, where a test watches another process or thread. Nothing here decides by time passed."""

import asyncio
import threading
import time

SECONDS = 30.0
STEP = 0.01


def until(condition, what="the condition", seconds=SECONDS):
    """Return the condition's first true value.

    Raises:
        AssertionError: it did not come true; `what` says what was waited for.
    """
    pause = threading.Event()
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come true within {seconds} s"
        pause.wait(STEP)
    return value


async def until_async(condition, what="the condition", seconds=SECONDS):
    """The same on a loop; the condition may be a coroutine function."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not come true within {seconds} s"
        await asyncio.sleep(STEP)
