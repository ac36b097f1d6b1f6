"""How a connection in our own protocol begins: hello, TLS, who this client is, and whether the bookie is the one that is meant.

Source: `docs/formats/native-protocol.md`, "Hello".
"""

from __future__ import annotations

from quire.core.answers import Answer
from quire.net.channel_codec import AnswerSink, ChannelCodec
from quire.net.connection_states import AUTHENTICATING, HELLO
from quire.net.ends import has_one_address
from quire.net.security.settings import ClientKeys
from quire.net.security.signing_in import WANTS_A_NAME, NativeOpening, Opening
from quire.wire import native_hello
from quire.wire.requests import Authenticate


class NativeGreeting(ChannelCodec):
    """The beginning of our own protocol at a client.

    Args:
        sent_bytes_max, taken_bytes_max: longest frames of either direction.
        cluster_instance: the cluster that the bookie must belong to; "" = any.
    """

    def __init__(self, sent_bytes_max: int, taken_bytes_max: int, cluster_instance: str) -> None:
        super().__init__(sent_bytes_max, taken_bytes_max)
        self._cluster_instance = cluster_instance
        self._opening: NativeOpening | None = None

    def ask_at_once(self, request: Authenticate, sink: AnswerSink) -> None:
        """Send a request of the opening, before all others."""
        raise NotImplementedError

    def opening(self, keys: ClientKeys | None) -> Opening | None:
        if keys is None:
            self.write_hello(self.hello())
        else:
            self._opening = NativeOpening(self.channel, self, keys)
        return self._opening

    def hello_received(self, body: memoryview) -> None:
        channel = self.channel
        hello = native_hello.decode_hello_answer(body)
        if hello.version and not hello.features & native_hello.START_TLS and hello.bookie_id != channel.meant:
            channel.give_up_on(hello.message or f"the bookie at this address is {hello.bookie_id}")
            return
        if hello.version and not native_hello.VERSION_MIN <= hello.version <= native_hello.VERSION:
            channel.refuse(
                f"the bookie responds in version {hello.version} of the native protocol, and this "
                f"client offered {native_hello.VERSION_MIN}..{native_hello.VERSION}"
            )
            return
        channel.features = hello.features
        if self._opening is not None and self._opening.takes(hello):
            if channel.state is HELLO:
                channel.enter(AUTHENTICATING)
            return
        if hello.answer is Answer.UNAUTHORISED:
            channel.refuse(hello.message or WANTS_A_NAME)
        elif hello.version == 0:
            channel.give_up_on(hello.message or "the bookie refused the connection")
        else:
            channel.beside = bool(hello.features & native_hello.BESIDE) and has_one_address(channel.transport)
            channel.opened()

    def hello(self, auth_scheme: str = "") -> native_hello.Hello:
        """Who is meant, and how this client can say who it is."""
        return native_hello.Hello(
            self._cluster_instance, self.channel.meant, features=native_hello.OFFERED, auth_scheme=auth_scheme
        )

    def write_hello(self, hello: native_hello.Hello) -> None:
        """Say hello."""
        assert self.channel.transport is not None
        self.channel.transport.write(native_hello.encode_hello(hello))
