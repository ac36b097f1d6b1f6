"""What goes wrong in a stream's world: a connection breaks, the response to a compare-and-swap is lost, a disk is lost.

Source: docs/protocol/streams.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.answers import Answer
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.parts import Label

if TYPE_CHECKING:
    from quire_testing.explorer.stream_world import Move, State, StreamWorld


def breaks(world: StreamWorld, state: State, moves: list[Move]) -> None:
    """A connection with requests on it breaks: what was under way may still arrive, late."""
    state = world.spent(state, "breaks")
    for client in range(world.count):
        for bookie in range(world.n):
            place = world.at.link + client * world.n + bookie
            link = world.links.parts[state[place]]
            if link.requests:
                new = list(state)
                new[place] = world.links.number(link.cut())
                world.tidy(new, client, place)
                command = f"its connection to {bookie_name(bookie)} breaks"
                moves.append((Label(world.names[client], command, (), kind="break"), tuple(new)))


def lost_swaps(world: StreamWorld, state: State, moves: list[Move]) -> None:
    """The response to a compare-and-swap is lost, and it may not have reached the store yet."""
    state = world.spent(state, "lost_swaps")
    for client in range(world.count):
        questions = world.asks.parts[state[world.at.ask + client]]
        for index, ask in enumerate(questions):
            who = world.clients.parts[state[world.at.client + client]]
            if ask.kind != "swap" or not ask.waits:
                continue
            kept = () if ask.answer else (ask._replace(waits=False),)
            rest = (*questions[:index], *kept, *questions[index + 1 :])
            assert ask.record is not None
            outcomes = world.driver_of(client).swap_answered(who, "unknown", ask.record, ask.version)
            world.answers(state, client, rest, outcomes, "hears nothing of its swap", "lost swap", moves)


def losses(world: StreamWorld, state: State, moves: list[Move]) -> None:
    """A bookie loses its disk, and with that what waits there."""
    state = world.spent(state, "losses")
    for bookie in range(world.n):
        before = world.bookies.parts[state[bookie]]
        if before.facts is None:
            continue
        new = list(state)
        new[bookie] = world.bookies.number(world.bookie_driver.lost(before))
        for client in range(world.count):
            place = world.at.link + client * world.n + bookie
            link = world.links.parts[new[place]].died()
            for whom, request, waits in before.waiting:
                if whom == client and waits:
                    link = link.answered((request, Answer.UNREACHABLE, None))
            new[place] = world.links.number(link)
            world.tidy(new, client, place)
        moves.append((Label(bookie_name(bookie), "loses its disk", (), kind="loss"), tuple(new)))
