"""How the programs of a replay begin where the explorer's world begins late: closed, or after an ensemble change.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from quire.core.ids import BookieId
from quire_testing.explorer.beginning import record_of
from quire_testing.explorer.clients import Outcome, bookie_name
from quire_testing.explorer.parts import Ask

if TYPE_CHECKING:
    from quire_testing.replay.play import Play


def begins_late(play: Play, command: str) -> bool:
    """Do what has been when the search begins; False: this is no such step."""
    configuration, writer = play.script.configuration, play.writer
    if not command.startswith(("has closed, lacking: ", "has changed the ensemble: ")):
        return False
    play._created(record_of(configuration), ())
    if configuration.closed:
        lacking = {(int(entry), name) for entry, name in re.findall(r"(\d+) at (b\d+)", command)}
        for entry in range(configuration.entries):
            _append(play, [name for each, name in lacking if each == entry])
        writer.close()
        _write(play)
    else:
        _append(play, ())
        writer.append()
        left = bookie_name(configuration.ensemble - 1)
        writer.bookies.spares = [bookie_name(configuration.ensemble)]
        writer.lost(left)
        _write(play)
        if configuration.gone:
            play._loses(play._bookie_named(left))
    writer.steps()
    writer.without_input = [Outcome(writer.client)]
    return True


def _append(play: Play, lacking: Collection[str]) -> None:
    """An append that is on the disks of its bookies and acknowledged; what some lack never arrives."""
    writer = play.writer
    writer.append()
    for bookie in play.bookies:
        for line in play.network.all_lines(writer.number + 1, bookie.name):
            for sent in [each for each in line.requests if each.request[0] == "add"]:
                line.requests.remove(sent)
                if BookieId(bookie.name) not in lacking:
                    bookie.take(line.bookie.feed, sent, at_once=True)
                    writer.hear(line, line.answers.pop())


def _write(play: Play) -> None:
    """The writer's change of the record is written, and it hears that."""
    writer = play.writer
    (question,) = writer.store.questions
    assert question.op is not None
    ask = Ask("swap", question.record, question.op.version)
    play.store, _ = play.world.swapped(play.store, ask, by_writer=True)
    writer.act(lambda: writer.store.land(question))
    writer.act(lambda: writer.store.answer(question))
