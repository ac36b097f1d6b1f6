"""What bookies do of a stream between power cuts: take-overs in both modes, those that die, and late requests.

Source: docs/protocol/streams.md; docs/crash-images.md.
"""

from __future__ import annotations

from quire_testing.crash.bookie_run import ROLL_BYTES, BookieRun


def take_overs(run: BookieRun) -> None:
    """A stream whose writers leave entries of the same ids in several terms, in segments that others fill."""
    for term in range(1, 5):
        first = 3 * term
        run.add(1, first, count=5, size=300, lac=first - 1, term=term)
        run.add(2, term, size=ROLL_BYTES)
        run.settle()
        run.fence(1, term=term + 1)
        run.flush()
        run.add(1, first, count=3, size=300, recovery=True, term=term + 1, origin_term=term)
        run.add(1, first + 1, size=100, lac=first, term=term)  # a writer that does not know of it
        run.add(2, 10 + term, size=ROLL_BYTES)
        run.settle()
        if term == 2:
            run.kill()
            run.add(1, first + 3, size=400, lac=first + 2, term=term)
            run.settle()
    run.delete(2)
    run.settle()
    run.reclaim()
    run.add(1, 15, count=2, size=100, lac=14, term=5)
    run.settle()


def truncations(run: BookieRun) -> None:
    """A stream whose terms only fence: each take-over writes back, truncates, puts its no-op and goes on behind it.

    The old writer's entries lie in other segments, which fill and are freed; the process is killed; truncations come
    again, late; a take-over dies behind its no-op, and the next one keeps that.
    """
    first = 0
    for term in range(2, 7):
        run.add(1, first, count=6, size=300, lac=first - 1, term=term - 1)
        run.add(20 + term, 0, size=ROLL_BYTES)
        run.settle()
        run.fence(1, term=term)
        run.flush()
        run.add(1, first, count=2, size=300, recovery=True, term=term, origin_term=term - 1)
        no_op = first + 2
        run.truncate(1, no_op, term=term)
        run.add(1, no_op, size=0, recovery=True, term=term, no_op=True)
        if term % 2:
            run.flush()
        else:
            run.settle()
        if term == 3:
            run.kill()
            run.fence(1, term=term)
        run.add(1, no_op + 1, count=2, size=400, lac=no_op, term=term)
        run.truncate(1, no_op, term=term)  # a frame of a connection that broke
        run.add(1, no_op + 3, size=100, lac=no_op, term=term - 1)  # a writer that does not know of it
        for entry_id in range(1, 5):
            run.add(20 + term, entry_id, size=ROLL_BYTES)
            run.settle()
        if term > 3:
            run.delete(18 + term)
            run.settle()
            if term % 2:
                run.in_slices(run.storage.housekeeping.compact_slices(0.0), lambda _: run.settle())
            run.reclaim()
            run.settle()
        first = no_op + 1
    run.stop()
    run.truncate(1, first + 1, term=7)
    run.settle()
    run.add(1, first + 1, size=0, recovery=True, term=7, no_op=True)
    run.settle()


def dead_take_overs(run: BookieRun) -> None:
    """Take-overs that get no further than their truncation, or their no-op; one that goes on over the no-op of another."""
    run.add(1, 0, count=8, size=500, term=1)
    run.settle()
    for term in range(2, 8):
        run.fence(1, term=term)
        run.truncate(1, 10 - term, term=term)
        if term % 2:
            run.add(1, 10 - term, size=0, recovery=True, term=term, no_op=True)
        run.flush()
        if term % 3:
            run.add(2, term, size=ROLL_BYTES)
            run.settle()
        else:
            run.step()
            run.kill()
    run.add(1, 2, size=500, recovery=True, term=8, origin_term=1)
    run.add(1, 3, size=0, recovery=True, term=8, origin_term=7, no_op=True)
    run.truncate(1, 4, term=8)
    run.add(1, 4, size=0, recovery=True, term=8, no_op=True)
    run.settle()
    run.add(1, 5, count=3, size=200, lac=4, term=8)
    run.settle()
