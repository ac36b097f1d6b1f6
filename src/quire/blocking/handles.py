"""How a blocking class holds the asynchronous object of the same name: one small mechanism, typed.

`append = awaited(AsyncWriter.append)` has the signature and the documentation of the original, without `await`.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

from quire.blocking.loop import CallRunner
from quire.blocking.prefetch import Prefetch
from quire.blocking.sessions import Session
from quire.blocking.submissions import Submissions
from quire.client.leaving import warn
from quire.core.ledger.guarantee import ACK_QUORUM, WRITE_QUORUM
from quire.env.home import not_pickled

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
H = TypeVar("H")

LEFT_MS: Final = 20_000
"""How long a writer that is left with an error may take what was submitted."""
INTERRUPTED_MS: Final = 1_000
"""The same after Ctrl-C."""


class BlockingHandle(Generic[H]):
    """Something of the asynchronous client, held for callers on other threads."""

    __reduce__ = not_pickled

    def __init__(self, inner: H, background: CallRunner) -> None:
        self._inner = inner
        self._background = background

    def __repr__(self) -> str:
        return f"<blocking {self._inner!r}>"


class ClosingHandle(BlockingHandle[H]):
    """A handle that is its own context manager, like the object it holds."""

    def __enter__(self) -> Self:
        self._background.run(cast("Any", self._inner).__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.run(cast("Any", self._inner).__aexit__, kind, error, trace)


def awaited(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[BlockingHandle[Any], P], R]:
    """The method of the same name without `await`."""

    @functools.wraps(method)
    def call(self: BlockingHandle[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        inner = getattr(self._inner, method.__name__)
        return cast("R", self._background.run(inner, *args, **kwargs))

    return call


def handed_out(
    method: Callable[Concatenate[Any, P], Awaitable[R]], wrap: Callable[[R, CallRunner], T]
) -> Callable[Concatenate[BlockingHandle[Any], P], T]:
    """The method of the same name without `await`; what it returns is a handle too."""

    @functools.wraps(method)
    def call(self: BlockingHandle[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        inner = getattr(self._inner, method.__name__)
        return wrap(self._background.run(inner, *args, **kwargs), self._background)

    return call


def iterated(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Callable[Concatenate[BlockingHandle[Any], P], Prefetch[R]]:
    """The method of the same name with `for` instead of `async for`; it fetches ahead."""

    @functools.wraps(method)
    def call(self: BlockingHandle[Any], /, *args: P.args, **kwargs: P.kwargs) -> Prefetch[R]:
        self._background.check()
        inner = getattr(self._inner, method.__name__)
        return Prefetch(functools.partial(inner, *args, **kwargs), self._background)

    return call


def shown(original: Callable[[Any], R]) -> R:
    """The property of the same name, which waits for nothing."""
    read = cast("property", original).fget
    assert read is not None

    def get(self: BlockingHandle[Any]) -> R:
        return cast("R", read(self._inner))

    return cast("R", property(get, doc=read.__doc__))


def asked(original: Callable[[Any], R]) -> R:
    """The property of the same name, which is put together on the loop, where what it looks at changes."""
    read = cast("property", original).fget
    assert read is not None

    def get(self: BlockingHandle[Any]) -> R:
        async def look() -> R:
            return cast("R", read(self._inner))

        return self._background.run(look)

    return cast("R", property(get, doc=read.__doc__))


def appended(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Appending[Any], P], R]:
    """The method of a writer without `await`; what was submitted before goes first."""

    @functools.wraps(method)
    def call(self: Appending[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", self._background.run(self._after_submissions, method.__name__, *args, **kwargs))

    return call


class Appending(ClosingHandle[H]):
    """A writer: what was submitted goes before everything that ends or waits."""

    def __init__(self, inner: H, background: CallRunner) -> None:
        super().__init__(inner, background)
        writer = cast("Any", inner)
        self._submissions = Submissions(writer.append_nowait, writer.drain, background)
        if isinstance(background, Session):
            background.submits(self._submissions)

    def drain(self) -> None:
        """Wait until everything appended so far is confirmed.

        Raises:
            OutcomeUnknownError: the writer ended before.
        """
        self._background.run(self._after_submissions, "drain")

    def close(self, *, at: str = WRITE_QUORUM) -> None:
        """Confirm what was appended and close.

        Args:
            at: "ack_quorum" closes at once what waits for a write quorum that is guaranteed; what found no room fails.
        """
        if at == ACK_QUORUM:
            self._background.run(cast("Any", self._inner).close, at=at)
        else:
            self._background.run(self._after_submissions, "close", at=at)

    def abandon(self) -> None:
        """End without closing, as if this process had died: what is open is left to a recovery."""
        self._background.run(cast("Any", self._inner).abandon)

    async def _after_submissions(self, what: str, *args: Any, **kwargs: Any) -> Any:
        await self._submissions.taken()
        return await getattr(self._inner, what)(*args, **kwargs)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._background.run(self._left, kind, error, trace)

    async def _left(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waiting = 0
        if kind is None:
            await self._submissions.taken()
        else:
            waiting = await self._submissions.taken_within(
                LEFT_MS if issubclass(kind, Exception) else INTERRUPTED_MS
            )
        try:
            await cast("Any", self._inner).__aexit__(kind, error, trace)
        finally:
            warn({"those that waited for room": waiting}, f"their writer was left with {error!r}")
