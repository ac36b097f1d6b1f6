"""How far a micro-batch goes: within its limits, never backwards, always on."""

from hypothesis import given
from hypothesis import strategies as st

from quire.spark.admission import Backlog, Stretch, admit


def dense(lengths, size=7):
    """Stretches one after another, a record an offset."""
    out, first = [], 0
    for length in lengths:
        out.append(Stretch(first, first + length, length, length * size))
        first += length
    return tuple(out)


logs = st.lists(
    st.tuples(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 300), st.integers(1, 30)),
    min_size=1,
    max_size=4,
)


def backlogs_of(shapes):
    out = []
    for number, (lengths, start, size) in enumerate(shapes):
        stretches = dense(lengths, size)
        end = stretches[-1].stop
        out.append(Backlog(f"log{number}", min(start, end), end, stretches))
    return out


@given(logs, st.none() | st.integers(1, 400), st.none() | st.integers(1, 4000))
def test_batches_keep_their_limits_and_reach_the_end(shapes, records, size):
    waiting = backlogs_of(shapes)
    read = {backlog.name: [] for backlog in waiting}
    rounds = 0
    while any(backlog.start < backlog.end for backlog in waiting):
        rounds += 1
        ends = admit(waiting, records, size)
        taken = sum(ends[backlog.name] - backlog.start for backlog in waiting)
        assert taken >= 1
        assert records is None or taken <= records
        if size is not None and taken > 1:
            one = max(shape[2] for shape in shapes)
            parts = [
                stretch.clipped(each.start, ends[each.name]) for each in waiting for stretch in each.stretches
            ]
            assert sum(part.bytes for part in parts) <= size + one * len(waiting)
        following = []
        for backlog in waiting:
            assert backlog.start <= ends[backlog.name] <= backlog.end
            read[backlog.name] += range(backlog.start, ends[backlog.name])
            following.append(backlog._replace(start=ends[backlog.name]))
        waiting = following
    for (_, start, _), backlog in zip(shapes, waiting, strict=True):
        assert read[backlog.name] == list(range(min(start, backlog.end), backlog.end))
    if records is None and size is None:
        assert rounds <= 1


def test_logs_share_by_what_waits():
    waiting = [Backlog("large", 0, 900, dense([900])), Backlog("small", 0, 100, dense([100]))]
    assert admit(waiting, 100) == {"large": 90, "small": 10}
    assert admit(waiting, 2) == {"large": 1, "small": 1}
    assert admit(waiting, 1) == {"large": 1, "small": 0}
    assert admit(waiting, 5000, 1) == {"large": 1, "small": 0}


def test_the_tighter_limit_wins():
    waiting = [Backlog("log", 0, 1000, dense([1000], size=10))]
    assert admit(waiting, 100, 10_000) == {"log": 100}
    assert admit(waiting, 100, 500) == {"log": 50}
    assert admit(waiting) == {"log": 1000}


def test_offsets_without_records_are_passed():
    # Of a thousand offsets compaction left ten records; behind them lie dense ones.
    waiting = [Backlog("log", 0, 1100, (Stretch(0, 1000, 10, 100), Stretch(1000, 1100, 100, 1000)))]
    assert admit(waiting, 5) == {"log": 500}
    assert admit(waiting, 20) == {"log": 1010}
    assert admit([waiting[0]._replace(start=999)], 1) == {"log": 1000}
