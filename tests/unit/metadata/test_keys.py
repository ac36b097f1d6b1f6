"""The keys of what Quire keeps for itself: only marks that Java shares lie in BookKeeper's own tree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import MisuseError
from quire.core.ids import ID_MAX
from quire.log.heads import name_key as log_name_key
from quire.metadata.keys import (
    KEYS,
    away_key,
    boot_key,
    ledger_notes_key,
    ledger_of,
    lock_key,
    missing_key,
    passes_key,
    read_only_for_key,
    repairs_key,
    stream_name_key,
    tombstone_key,
    watermark_key,
)
from quire.metadata.records import OF_STREAMS
from quire.metadata.store import check_key
from quire.metadata.zookeeper.options import ZookeeperLayout
from quire.metadata.zookeeper.paths import KeyPaths

OF_LEDGERS = [ledger_notes_key, tombstone_key, OF_STREAMS.key, repairs_key]
SHARED = [missing_key, lock_key]
OF_BOOKIES = [watermark_key, boot_key, passes_key, away_key, read_only_for_key]
NUMBERS = st.integers(0, ID_MAX) | st.sampled_from([0, 1, 2**31 - 2, 2**31 - 1, ID_MAX])
BOOKIES = st.from_regex(r"[a-zA-Z0-9:-_.\-]{1,60}", fullmatch=True).filter(
    lambda name: name.lower() != "readonly" and name not in {".", ".."}
)
NAMES = (
    st.lists(
        st.text(
            st.characters(codec="utf-8", categories=["L", "N", "P", "S"], exclude_characters="/"),
            min_size=1,
            max_size=20,
        ),
        min_size=1,
        max_size=3,
    )
    .map("/".join)
    .filter(lambda name: {".", ".."}.isdisjoint(name.split("/")))
)


@pytest.mark.parametrize("layout", ZookeeperLayout, ids=lambda layout: layout.value)
@given(number=NUMBERS, bookie=BOOKIES, name=NAMES)
def test_every_key_lies_in_quires_own_tree_and_comes_back(layout, number, bookie, name):
    paths = KeyPaths("/ledgers", layout)
    for shared in (make(number) for make in SHARED):
        assert paths.key(paths.path(shared)) == shared
    keys = (
        [make(number) for make in OF_LEDGERS]
        + [make(bookie) for make in OF_BOOKIES]
        + [stream_name_key(name)]
    )
    assert len(set(keys)) == len(keys)
    for key in keys:
        assert check_key(key) == key
        path = paths.path(key)
        assert path.startswith("/ledgers/quire/")
        assert paths.key(path) == key
        assert paths.watched(key)[0].startswith("/ledgers/quire/")


@given(st.tuples(NUMBERS, NUMBERS))
def test_keys_sort_like_their_ids(numbers):
    for make in OF_LEDGERS + SHARED:
        assert [ledger_of(make(number)) for number in numbers] == [*numbers]
        assert sorted(make(number) for number in numbers) == [make(number) for number in sorted(numbers)]


@pytest.mark.parametrize("make", OF_LEDGERS + SHARED)
def test_a_number_that_is_no_id_has_no_key(make):
    for number in (-1, ID_MAX + 1):
        with pytest.raises(MisuseError, match="no ledger id"):
            make(number)


@pytest.mark.parametrize("make", OF_BOOKIES)
def test_a_name_that_is_no_bookies_has_no_key(make):
    for name in ("", "a/b", "readonly", "..", "ü", "a b"):
        with pytest.raises(MisuseError):
            make(name)


def test_a_name_that_cannot_be_a_key_is_refused_as_what_it_is():
    for key_of, what in ((stream_name_key, "a stream's name"), (log_name_key, "a log's name")):
        for name in ("", "/a", "a/", "a//b", "..", "a\n", "x" * 600):
            with pytest.raises(MisuseError, match=f"cannot be {what}: 1 to"):
                key_of(name)


def test_the_list_of_keys_has_them_all():
    listed = [row.location.partition("/")[0] for row in KEYS.rows()]
    made = (
        [make(1) for make in OF_LEDGERS + SHARED]
        + [make("b:1") for make in OF_BOOKIES]
        + [stream_name_key("n")]
    )
    assert {key.partition("/")[0] for key in made} <= set(listed)
