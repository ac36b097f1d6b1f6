"""A proxy between a client and a server on loopback, which a test makes fail like a network."""

import asyncio
from contextlib import asynccontextmanager, suppress

CHUNK = 65536


class TcpProxy:
    """Forwards connections to one server.

    Attributes:
        port: where it listens.
        to_server: whether what clients send is forwarded; else it is swallowed.
        to_client: the same for what the server sends.
        accepts: whether new connections are taken; else they are closed at once.
        lost: answers that did not arrive, since `lose_one_in` began.
        swallowed: something that a client sent was, since the network went silent.
    """

    def __init__(self, host, port):
        self.server = (host, port)
        self.port = 0
        self.to_server = True
        self.to_client = True
        self.accepts = True
        self.swallowed = asyncio.Event()
        self.lost = 0
        self._lose_one_in = 0
        self._answers = 0
        self._writers = set()
        self._forgotten = set()
        self._tasks = set()

    def pass_everything(self):
        """The network is well again. Connections in which something was swallowed end: TCP would never go on so."""
        self.to_server = self.to_client = self.accepts = True
        self._lose_one_in = 0
        self.cut()

    def go_silent(self):
        """A partition: nothing arrives, nobody is told."""
        self.to_server = self.to_client = False
        self.swallowed.clear()

    def forget_flows(self):
        """A firewall has forgotten the connections that are open: they swallow everything; new ones are well."""
        self._forgotten |= self._writers

    def lose_answers(self):
        """Requests arrive, answers do not."""
        self.to_client = False

    def lose_one_in(self, count):
        """Every so many answers one is lost, and its connection with it: TCP loses nothing in the middle."""
        self._lose_one_in, self._answers, self.lost = count, 0, 0

    def _loses(self, direction):
        if direction == "to_server" or not self._lose_one_in:
            return False
        self._answers += 1
        loses = self._answers % self._lose_one_in == 0
        self.lost += loses
        return loses

    def refuse(self):
        """The server is gone: connections end, new ones too."""
        self.accepts = False
        self.cut()

    def cut(self):
        """End all connections at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            if not self.accepts:
                return
            with suppress(OSError):
                there, back = await asyncio.open_connection(*self.server)
                self._writers.add(back)
                try:
                    await asyncio.gather(
                        self._pump(reader, back, "to_server"), self._pump(there, writer, "to_client")
                    )
                finally:
                    self._writers.discard(back)
                    back.transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader, writer, direction):
        with suppress(OSError):
            while data := await reader.read(CHUNK):
                if self._loses(direction):
                    break
                if getattr(self, direction) and writer not in self._forgotten:
                    writer.write(data)
                    await writer.drain()
                elif direction == "to_server":
                    self.swallowed.set()
        writer.transport.abort()

    async def _connected(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)


@asynccontextmanager
async def tcp_proxy(host, port, kind=TcpProxy):
    """`async with tcp_proxy(host, port) as proxy`: it listens on 127.0.0.1, port `proxy.port`."""
    proxy = kind(host, port)
    server = await asyncio.start_server(proxy._connected, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        for task in list(proxy._tasks):
            task.cancel()
        await asyncio.gather(*proxy._tasks, return_exceptions=True)
