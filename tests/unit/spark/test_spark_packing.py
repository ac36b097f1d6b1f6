"""Tasks cover what is to be read exactly, in order, within their sizes."""

from hypothesis import given
from hypothesis import strategies as st

from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.spark.decode import SourceLedger
from quire.spark.packing import EntrySpan, pack, usual_split

RECORD = new_ledger(
    LedgerId(1), [BookieId("b1")], write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C, password=b""
)


def piece(ledger, first, entries, size):
    return EntrySpan(
        SourceLedger("orders", ledger, 0), RECORD, first, first + entries - 1, size, batches=True
    )


pieces_of = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 60), st.integers(0, 5_000)), max_size=12
).map(lambda shapes: [piece(i, first, entries, size) for i, (first, entries, size) in enumerate(shapes)])


@given(pieces_of, st.integers(1, 6_000), st.none() | st.integers(1, 8), st.none() | st.integers(1, 8))
def test_tasks_cover_everything_once_in_order(pieces, split_bytes, least, most):
    tasks = pack(pieces, split_bytes, min_partitions=least, max_partitions=most)
    read = [
        (part.origin.ledger_id, entry)
        for task in tasks
        for part in task
        for entry in range(part.first_entry, part.last_entry + 1)
    ]
    assert read == [
        (one.origin.ledger_id, entry)
        for one in pieces
        for entry in range(one.first_entry, one.last_entry + 1)
    ]
    assert sum(part.size for task in tasks for part in task) == sum(one.size for one in pieces)
    if most:
        assert len(tasks) <= most
    assert all(tasks)


@given(pieces_of, st.integers(1, 6_000))
def test_no_task_is_larger_than_the_split_unless_one_entry_is(pieces, split_bytes):
    largest = max((-(-one.size // (one.last_entry - one.first_entry + 1)) for one in pieces), default=0)
    for task in pack(pieces, split_bytes):
        assert sum(part.size for part in task) <= split_bytes + largest


def test_small_pieces_share_a_task_and_a_large_one_is_cut():
    small = [piece(i, 0, 1, 10) for i in range(100)]
    assert [len(task) for task in pack(small, 500)] == [50, 50]
    assert [len(task) for task in pack([piece(0, 0, 1000, 1000)], 250)] == [1, 1, 1, 1]


def test_without_a_size_each_cpu_has_a_task_that_is_worth_it():
    mib = 1 << 20
    two = [piece(0, 0, 62, 62 * mib), piece(1, 0, 64, 64 * mib)]
    assert [len(task) for task in pack(two, usual_split(126 * mib, 2))] == [1, 1]
    assert usual_split(10 * mib, 64) == 16 * mib
    assert usual_split(1 << 40, 64) == 288 * mib


def test_partitions_can_be_asked_for():
    large = [piece(0, 0, 1000, 1 << 20)]
    assert len(pack(large, 1 << 30)) == 1
    assert len(pack(large, 1 << 30, min_partitions=8)) == 8
    assert len(pack(large, 1 << 10, max_partitions=3)) == 3


def test_an_entry_is_never_cut():
    assert len(pack([piece(0, 7, 2, 1 << 20)], 1)) == 2
