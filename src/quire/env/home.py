"""Handles belong to the process and the event loop that opened them: elsewhere they refuse, before anything is asked."""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop, _get_running_loop
from typing import NoReturn

from quire.core.errors import MisuseError


def check_home(what: str, loop: AbstractEventLoop, pid: int | None = None, **ids: object) -> None:
    """Refuse a call that could never be answered, or only on a loop that is not the caller's.

    Args:
        what: what is used, in words.
        loop: the one that it was opened on. In a forked child it does not run.
        pid: the process that opened it, if it is to be named.
        ids: for the error.

    Raises:
        MisuseError: after a fork, in another `asyncio.run`, on another thread, or without a loop.
    """
    if _get_running_loop() is loop:
        return
    if pid is not None and os.getpid() != pid:
        msg = (
            f"{what} was opened by process {pid} and cannot be used after a fork, in process {os.getpid()}; open another"
            " there"
        )
        raise MisuseError(msg, **ids)
    msg = (
        f"{what} belongs to the event loop that it was opened on, and another one runs here, or none; connect again with "
        "`quire.connect` in each `asyncio.run` and on each thread, or use `quire.blocking`, whose handles any thread may use"
    )
    raise MisuseError(msg, **ids)


def not_pickled(handle: object) -> NoReturn:
    """As `__reduce__` of a handle: it can be neither pickled nor copied.

    Raises:
        MisuseError: always.
    """
    msg = (
        f"a {type(handle).__name__} can be neither pickled nor copied: it belongs to the process that opened it. Hand on "
        "what names it (the cluster's URI, a name, an id), and open it there"
    )
    raise MisuseError(msg)
