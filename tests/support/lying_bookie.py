"""A bookie that lies about where runs are, and about what it holds; everything else about it is real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.bookie.ledgers.ledgers import Found
from quire.bookie.server import BookieServer
from quire.core.answers import Answer
from quire.wire import native
from quire.wire.run import RunLocation

TWO_FRAMES = 2 * native.FRAME_BYTES_MAX
"""More than places may come to is refused before anything is asked of them."""
Lie = Callable[["LyingBookie", Found], None]


class LyingBookie(BookieServer):
    """A `BookieServer` whose responses to READ are changed by `lie` before they are sent.

    Attributes:
        lie: changes what was found; None while the bookie is honest.
        lies: how many responses were changed.
        folder: where the lies find files that are not the bookie's.
    """

    lie: Lie | None = None
    lies = 0
    folder = Path()

    async def start(self) -> None:
        await super().start()
        honest = self.ledgers.read

        def read(*args: Any, **options: Any) -> Found:
            found = honest(*args, **options)
            if self.lie is not None:
                self.lies += 1
                self.lie(self, found)
            return found

        self.ledgers.read = read  # type: ignore[method-assign]


def _moved(change: Callable[[LyingBookie, RunLocation], RunLocation]) -> Lie:
    """The lie that changes each place; what was not placed is not sent."""

    def lie(bookie: LyingBookie, found: Found) -> None:
        found.runs = []
        found.locations = [change(bookie, location) for location in found.locations]

    return lie


def _at(name: str) -> Lie:
    """The lie that a run is in a file of the test's folder."""
    return _moved(lambda bookie, location: location._replace(path=str(bookie.folder / name)))


def _as_often_as_fits(bookie: LyingBookie, found: Found) -> None:
    found.locations = [
        location for location in found.locations[:1] for _ in range(TWO_FRAMES // location.size)
    ]


def _ever_again(bookie: LyingBookie, found: Found) -> None:
    found.locations = [location for location in found.locations[:1] for _ in range(20_000)]


def _a_long_one_many_times(bookie: LyingBookie, found: Found) -> None:
    size = TWO_FRAMES // 40
    found.locations = [
        location._replace(offset=0, size=size) for location in found.locations[:1] for _ in range(40)
    ]


def _longest(bookie: LyingBookie, found: Found) -> None:
    found.locations = [location._replace(size=native.FRAME_BYTES_MAX) for location in found.locations[:1]]


def _denies(bookie: LyingBookie, found: Found) -> None:
    found.runs, found.locations, found.unknown, found.conclusive_through = [], [], [], 1 << 62


def _denies_the_ledger(bookie: LyingBookie, found: Found) -> None:
    found.answer = Answer.NO_LEDGER


def _invented_place(bookie: LyingBookie, found: Found) -> None:
    if not found.locations:
        directory = bookie.config.directory.absolute()
        found.locations = [RunLocation(str(directory / "segments" / "0000000000000001.seg"), 4096, 70_000, 1)]
        found.runs = []


UNASKED = "places that nobody asked for"
FOLDER = "e" * 16 + ".seg"
REFUSED: dict[str, Lie] = {
    "a path with NUL": _moved(lambda _, location: location._replace(path=location.path + "\0.seg")),
    "NUL before the path": _moved(lambda _, location: location._replace(path="\0" + location.path)),
    "a path that is too long": _moved(lambda _, location: location._replace(path="/a" * 20_000 + ".seg")),
    "a file outside of its directory": _at("outside.seg"),
    "a way out of its directory": _moved(
        lambda _, location: location._replace(path=f"{Path(location.path).parent}/../../outside.seg")
    ),
    "a relative path": _moved(lambda _, location: location._replace(path="outside.seg")),
    "a pipe": _at("pipe.seg"),
    "no bytes at all": _moved(lambda _, location: location._replace(size=0)),
    "less than a record has": _moved(lambda _, location: location._replace(size=1)),
    "one good record many times": _as_often_as_fits,
    "more than was asked for": _a_long_one_many_times,
}
"""Places that end short-circuit reads on a connection at once, by the name of the lie."""

MISSED: dict[str, Lie] = {
    "a place beyond the file's end": _moved(lambda _, location: location._replace(offset=1 << 40)),
    "the last place that there can be": _moved(
        lambda _, location: location._replace(offset=(1 << 63) - 1 - location.size)
    ),
    "another segment's seed": _moved(lambda _, location: location._replace(seed=location.seed ^ 1)),
    "the longest record": _longest,
    "a file that is not there": _moved(
        lambda _, location: location._replace(path=str(Path(location.path).with_name("f" * 16 + ".seg")))
    ),
}
"""Places that a segment could have as well that was recycled, or given back."""

LIES: dict[str, Lie] = {
    **REFUSED,
    **MISSED,
    "a folder": _moved(
        lambda _, location: location._replace(path=str(Path(location.path).with_name(FOLDER)))
    ),
    "one good record 20,000 times": _ever_again,
    "a place in no file": _moved(lambda _, location: location._replace(offset=(1 << 64) - 1)),
    UNASKED: _invented_place,
    "no such entry": _denies,
    "no such ledger": _denies_the_ledger,
}
"""All that a hostile bookie may answer to a READ."""
