"""One session with ZooKeeper: kazoo's threads on one side, the event loop on the other.

kazoo owns the socket, the session and its renewal. Requests go into its queue without waiting; responses and events
come back in batches, one wake-up of the loop for all that arrived together. Knows nothing of keys and layouts.

What the loss of a connection does to a request that was sent: its response is lost. A read is sent again; the outcome
of a change is unknown. A later read on this session shows it: ZooKeeper refuses what an earlier connection of the
session still had under way once the session has moved, and works off one connection in order.

Source: ZooKeeper Programmer's Guide, "ZooKeeper Sessions", "Consistency Guarantees"; kazoo 2.11, `client.py`,
`protocol/connection.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import selectors
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    OperationTimeoutError,
    SASLException,
    SessionExpiredError,
    SessionMovedError,
    UnimplementedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.handlers.utils import selector_select
from kazoo.protocol.connection import DELETED_EVENT, ConnectionHandler
from kazoo.protocol.serialization import Sync, Watch
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from quire.core.errors import MetadataUnknownError, MisuseError, NoClusterError, QuireError, RefusedError
from quire.env.home import check_home
from quire.metadata.slow import SlowNote
from quire.metadata.store import StoreAwayError
from quire.metadata.zookeeper.options import ZookeeperAddress
from quire.metadata.zookeeper.requests import know_all_errors

LOST: Final = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    SessionMovedError,
    OperationTimeoutError,
)
"""The response is lost; what was asked for may have happened."""
RECONNECT_DELAY_S: Final = 0.05
RECONNECT_DELAY_MAX_S: Final = 1.0
CLOSE_S: Final = 2.0
"""How long a client that is closed waits for the server to end its session; without, it ends by its time."""
_POLL: Final = SimpleNamespace(
    DefaultSelector=selectors.PollSelector,
    EVENT_READ=selectors.EVENT_READ,
    EVENT_WRITE=selectors.EVENT_WRITE,
)
_CHUNK_BYTES: Final = 1 << 16
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_LOG: Final = logging.getLogger(__name__)


class _LastWords(logging.Handler):
    """Keeps what kazoo last complained of, for our own messages; kazoo's own would fill the log while a server is away."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and record.exc_info:
            self.text = f"{record.getMessage()}: {record.exc_info[1]!r}"
        elif not record.getMessage().startswith("Transition"):
            self.text = record.getMessage()


class _Threads(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, which wait for a socket with `poll`: kazoo makes a new epoll instance for every wait."""

    def select(self, *arguments: Any) -> Any:
        return selector_select(*arguments, selectors_module=_POLL)


class _Connection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection, with events of persistent watches handed to us: kazoo knows only those that fire once.

    Most responses have come as a whole when their first byte has, and most requests fit into the socket: it is tried
    before kazoo waits for it.
    """

    on_event: Callable[[str, bool], None]

    def _read(self, length: int, timeout: float) -> bytes:
        here = b""
        with self._socket_error_handling(), contextlib.suppress(*_NOT_NOW):
            here = self._socket.recv(min(max(length, 0), _CHUNK_BYTES))
        return here if len(here) == length else here + super()._read(length - len(here), timeout)

    def _write(self, msg: bytes, timeout: float) -> None:
        sent = 0
        with self._socket_error_handling(), contextlib.suppress(*_NOT_NOW):
            sent = self._socket.send(msg)
        if sent < len(msg):
            super()._write(msg[sent:], timeout)

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        watch, _ = Watch.deserialize(buffer, offset)
        if watch.path:
            self.on_event(watch.path, watch.type == DELETED_EVENT)


class _Result:
    """Where kazoo's thread puts a response: on its way to a future of the loop."""

    __slots__ = ("_session", "future")

    def __init__(self, session: ZookeeperSession, future: asyncio.Future[Any]) -> None:
        self._session = session
        self.future = future

    def set(self, value: object) -> None:
        self._session.post(_settle, self.future, value, self._session.client.last_zxid)

    def set_exception(self, error: BaseException) -> None:
        self._session.post(self._session.refuse, self.future, error)


class _BeforeRead(_Result):
    """Of a `sync` before a read only an error is of interest: its success need not wake the loop."""

    def set(self, value: object) -> None:
        pass


def _settle(future: asyncio.Future[Any], value: object, zxid: int) -> None:
    if not future.done():
        future.set_result((value, zxid))


class ZookeeperSession:
    """A connection that renews itself.

    Args:
        address: where, and how to behave.
        on_connected: awaited whenever a connection stands, before any other use: watches must be set again, and what a
            new session does not have must be made again.
        on_event: called with the path of every znode that a watch reported, and whether it was deleted.
        on_failed: called once when the session has ended for good.
    """

    def __init__(
        self,
        address: ZookeeperAddress,
        *,
        on_connected: Callable[[], Awaitable[None]],
        on_event: Callable[[str, bool], None],
        on_failed: Callable[[QuireError], None],
    ) -> None:
        self.address = address
        self._slow = SlowNote(f"ZooKeeper at {','.join(address.hosts)}", address.options.patience_ms / 1000)
        self.session_id = 0
        self.failure: QuireError | None = None
        self._on_connected = on_connected
        self._on_failed = on_failed
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake_due = False
        self._usable = asyncio.Event()
        self._closed = False
        self._is_new = False
        self._setting_up: asyncio.Task[None] | None = None
        self._last_words = _LastWords()
        self.client = self._make_client()

    def _make_client(self) -> KazooClient:
        know_all_errors()
        options = self.address.options
        logger = logging.Logger("kazoo of quire")  # noqa: LOG001 - its own, outside the tree: only we listen
        logger.addHandler(self._last_words)
        sasl, auth = None, []
        if options.credentials is not None:
            kind, user, password = options.credentials
            if kind == "sasl":
                sasl = {"mechanism": "DIGEST-MD5", "username": user, "password": password}
            else:
                auth = [("digest", f"{user}:{password}")]
        retry = KazooRetry(max_tries=-1, delay=RECONNECT_DELAY_S, max_delay=RECONNECT_DELAY_MAX_S)
        client = KazooClient(
            hosts=",".join(self.address.hosts),
            handler=_Threads(),
            timeout=options.session_timeout_ms / 1000,
            auth_data=auth,
            sasl_options=sasl,
            connection_retry=retry,
            logger=logger,
            use_ssl=options.tls_ca is not None,
            ca=options.tls_ca,
            certfile=options.tls_certificate,
            keyfile=options.tls_key,
        )
        handler = _Connection(client, client._conn_retry.copy(), logger=logger, sasl_options=sasl)
        handler.on_event = lambda path, deleted: self.post(self._on_event, path, deleted)
        client._connection = handler
        client.add_listener(
            lambda state: self.post(self._state_changed, state, client._state, client._session_id)
        )
        return client

    @property
    def acl(self) -> list[ACL]:
        """The rights of what this client makes."""
        return list(CREATOR_ALL_ACL if self.address.options.acl == "creator" else OPEN_ACL_UNSAFE)

    async def start(self) -> None:
        """Connect for the first time.

        Raises:
            NoClusterError: no server responds, or not as ZooKeeper does, or it refuses the credentials.
        """
        self.client.start_async()
        patience_ms = self.address.options.patience_ms
        try:
            with self._slow.waiting():
                async with asyncio.timeout(patience_ms / 1000):
                    await self._usable.wait()
        except TimeoutError:
            why = self._why()
            await self.close()
            raise NoClusterError(
                f"no ZooKeeper server responded at {','.join(self.address.hosts)} within "
                f"{patience_ms} ms ({why}); is it running, and is this its client port?"
            ) from None
        except asyncio.CancelledError:
            await self.close()
            raise
        if self.failure is not None:
            await self.close()
            raise self.failure

    def _why(self) -> str:
        return self._last_words.text or "no answer"

    # --- requests ------------------------------------------------------------------------------------------------

    def submit(self, request: Any, *, fresh: bool = False) -> asyncio.Future[Any]:
        """Send a request after all earlier ones, whatever the state of the connection.

        Args:
            request: one of kazoo's, or of `zookeeper/requests.py`.
            fresh: have the server catch up with its leader first.

        Returns:
            A future of (response, transaction id that the server had seen when it answered).
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if fresh:
            self.client._call(Sync(self.address.root), _BeforeRead(self, future))
        self.client._call(request, _Result(self, future))
        return future

    @property
    def is_ready(self) -> bool:
        """Whether a connection stands now, for what need not be done."""
        return self._usable.is_set() and self.failure is None and not self._closed

    async def ready(self) -> None:
        """Wait for a connection.

        Raises:
            StoreAwayError: none came within `patience_ms`.
            MisuseError: closed, or used after a fork.
        """
        self._check()
        if not self._usable.is_set():
            try:
                with self._slow.waiting():
                    async with asyncio.timeout(self.address.options.patience_ms / 1000):
                        await self._usable.wait()
            except TimeoutError:
                raise self.away() from None
        self._check()

    def away(self) -> StoreAwayError:
        """What to raise when nothing was changed because the store does not respond."""
        return StoreAwayError(
            f"ZooKeeper at {','.join(self.address.hosts)} has not responded for "
            f"{self.address.options.patience_ms} ms ({self._why()}); nothing was changed, try again",
        )

    def _check(self) -> None:
        check_home("this metadata store", self._loop, self._pid)
        if self._closed:
            raise MisuseError("this metadata store is closed; open another")
        if self.failure is not None:
            raise self.failure

    async def read(self, request: Any, *, fresh: bool = True) -> tuple[Any, int]:
        """The response to a read; sent again when a connection is lost.

        Args:
            request: what to read.
            fresh: see everything that was done before, on whichever server.

        Raises:
            StoreAwayError: no response within `patience_ms`.
            KazooException: the response is an error.
        """
        try:
            async with asyncio.timeout(self.address.options.patience_ms / 1000):
                while True:
                    await self.ready()
                    try:
                        with self._slow.waiting():
                            return await self.submit(request, fresh=fresh)  # type: ignore[no-any-return]
                    except LOST:
                        await self._next_connection()
        except TimeoutError:
            raise self.away() from None
        except AuthFailedError as error:
            raise self._bad_credentials() from error
        except NoAuthError as error:
            raise self.refused() from error
        except UnimplementedError as error:
            raise RefusedError(
                f"ZooKeeper at {','.join(self.address.hosts)} is too old: Quire needs 3.6 or later"
            ) from error

    async def change(self, request: Any, what: str) -> Any:
        """The response to a change, sent once.

        Raises:
            MetadataUnknownError: the response is lost.
            StoreAwayError: it was never sent.
            KazooException: the response is an error.
        """
        await self.ready()
        try:
            with self._slow.waiting():
                async with asyncio.timeout(self.address.options.patience_ms / 1000):
                    answer, _ = await self.submit(request)
        except (TimeoutError, *LOST) as error:
            raise MetadataUnknownError(
                f"the connection to ZooKeeper was lost before it said whether {what}; read again, then decide"
                f" ({error or 'no answer'})",
            ) from error
        except AuthFailedError as error:
            raise self._bad_credentials() from error
        except NoAuthError as error:
            raise self.refused() from error
        return answer

    def _bad_credentials(self) -> NoClusterError:
        return NoClusterError(
            f"ZooKeeper at {','.join(self.address.hosts)} refuses the credentials: is the password right?"
        )

    def refused(self) -> RefusedError:
        """What to raise when the server says that this client has no right."""
        return RefusedError(
            f"ZooKeeper at {','.join(self.address.hosts)} denies permission: this client's "
            "credentials lack the right; name a file with other credentials in the cluster's URI "
            "(?credentials=FILE)"
        )

    async def _next_connection(self) -> None:
        """Let the state catch up with a lost response, then wait; not spin while kazoo reports the connection as up."""
        await asyncio.sleep(RECONNECT_DELAY_S)

    # --- from kazoo's threads -----------------------------------------------------------------------------------------

    def post(self, work: Callable[..., None], *arguments: Any) -> None:
        """Have the loop do something; from any thread. What comes together wakes it once."""
        self._posted.append((work, arguments))
        if not self._wake_due:
            self._wake_due = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and every caller with it
                self._loop.call_soon_threadsafe(self._take_posted)

    def _take_posted(self) -> None:
        self._wake_due = False
        while self._posted:
            work, arguments = self._posted.popleft()
            work(*arguments)

    def refuse(self, future: asyncio.Future[Any], error: BaseException) -> None:
        """Take the error of a request. kazoo fails the requests of a lost connection before it notifies the session."""
        if isinstance(error, LOST) and not self.client.connected:
            self._usable.clear()
        if not future.done():
            # kazoo fails all that were under way with one exception; raised in many places it would chain to itself.
            future.set_exception(type(error)(*error.args))

    def _state_changed(self, state: str, exact: str, session_id: int | None) -> None:
        if self._closed or self.failure is not None:
            return
        if state == KazooState.CONNECTED:
            if self._setting_up is not None:
                self._setting_up.cancel()
            self._setting_up = self._loop.create_task(
                self._set_up(session_id or 0), name="zookeeper connected"
            )
            return
        if self._usable.is_set():
            _LOG.warning("the connection to ZooKeeper at %s is lost (%s)", self.address, self._why())
        self._usable.clear()
        if exact == KeeperState.AUTH_FAILED:
            self._fail(self._bad_credentials())
        elif state == KazooState.LOST and exact == KeeperState.CLOSED:
            self._fail(NoClusterError(f"the server at {self.address} is not ZooKeeper: {self._why()}"))

    async def _set_up(self, session_id: int) -> None:
        # Kept until a set-up has succeeded: one that was interrupted must not hide that the session is a new one.
        self._is_new |= self.session_id not in {0, session_id}
        first, self.session_id = self.session_id == 0, session_id
        renewed = self._is_new
        try:
            await self._on_connected()
        except (*LOST, TimeoutError, StoreAwayError, MetadataUnknownError):
            return  # lost again; the next connection sets up anew
        except (QuireError, KazooException) as error:
            _LOG.exception("ZooKeeper at %s could not be used after a connection was made", self.address)
            too_old = isinstance(error, UnimplementedError)
            why = (
                "it is older than 3.6, upgrade it (it has no persistent watches)" if too_old else repr(error)
            )
            self._fail(NoClusterError(f"ZooKeeper at {self.address} cannot be used: {why}"))
            return
        if not first:
            again = "in a new session" if renewed else "in the same session"
            _LOG.warning("connected to ZooKeeper at %s again, %s", self.address, again)
        self._is_new = False
        self._usable.set()

    def _fail(self, failure: QuireError) -> None:
        self.failure = failure
        self._usable.set()  # waiting callers see it
        self._on_failed(failure)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the session: the server removes its registrations at once, if it responds."""
        if self._closed:
            return
        self._closed = True
        self._stop_setting_up()
        if os.getpid() == self._pid:
            stopped = self._loop.create_future()
            # No thread of the loop's executor: the process would wait for its end.
            threading.Thread(
                target=self._stop_client, args=(stopped,), name="kazoo closing", daemon=True
            ).start()
            await asyncio.wait((stopped,), timeout=CLOSE_S)
            if not stopped.done():
                self._cut()

    def _stop_client(self, stopped: asyncio.Future[None]) -> None:
        with contextlib.suppress(KazooException, OSError, SASLException, AuthFailedError):
            self.client.stop()
            self.client.close()
        self.post(stopped.set_result, None)

    def _cut(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.client._connection._socket.shutdown(2)

    def _stop_setting_up(self) -> None:
        if self._setting_up is not None:
            self._setting_up.cancel()

    def abandon(self) -> None:
        """End as a killed process would: the server gets nothing more. For tests."""
        self._closed = True
        self._stop_setting_up()
        self.client._stopped.set()
        self._cut()
        self.client._safe_close()
        self.client.close()
