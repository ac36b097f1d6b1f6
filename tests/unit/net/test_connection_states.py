"""The table of a connection's states: which follows which, and that a connection keeps to it."""

import pytest

from quire.net.channel import Channel, NativeCodec
from quire.net.channel_codec import ChannelContext
from quire.net.connection_states import FIRST, FOLLOWS, OPEN, SHUT, ConnectionState
from quire.net.receive_memory import ReceiveBudget, Scratch


def made():
    context = ChannelContext(Scratch(), ReceiveBudget(1 << 20))
    return Channel("b1", context, NativeCodec(context, ""), lambda *_: None)


def test_every_state_is_reached_from_the_first_one_and_ends():
    reached, ways = set(), [FIRST]
    while ways:
        state = ways.pop()
        if state not in reached:
            reached.add(state)
            ways += FOLLOWS[state]
    assert reached == set(ConnectionState) == set(FOLLOWS)
    assert all(SHUT in following for following in FOLLOWS.values())
    assert FOLLOWS[SHUT] == {SHUT}, "a connection does not come back"


@pytest.mark.parametrize("state", set(ConnectionState) - {SHUT}, ids=lambda state: state.name)
def test_what_is_over_stays_over(state):
    channel = made()
    channel.end("it was never made")
    assert channel.state is SHUT
    with pytest.raises(AssertionError, match="a connection went from"):
        channel.enter(state)
    assert channel.state is SHUT


def test_a_hello_comes_before_the_first_response():
    channel = made()
    assert OPEN in FOLLOWS[channel.state]
    assert channel.state.value.startswith("a hello")
