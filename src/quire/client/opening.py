"""What opens a handle: entered, or awaited and then closed by the caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar

H = TypeVar("H", bound=AbstractAsyncContextManager[Any, Any])


class Opening(Generic[H]):
    """A handle that is not open yet: `async with` this, or `await` it and close the handle yourself.

    Args:
        begin: opens it; not called before.
    """

    __slots__ = ("_begin", "_handle")

    def __init__(self, begin: Callable[[], Awaitable[H]]) -> None:
        self._begin = begin
        self._handle: H | None = None

    def __await__(self) -> Generator[object, None, H]:
        return self._begin().__await__()

    async def __aenter__(self) -> H:
        self._handle = await self._begin()
        await self._handle.__aenter__()
        return self._handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._handle is not None
        suppressed: bool | None = await self._handle.__aexit__(kind, error, trace)
        return suppressed
