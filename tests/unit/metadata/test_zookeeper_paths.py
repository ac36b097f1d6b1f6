"""Keys and znodes, LAYOUT, and URIs: against what Java's classes computed (tests/vectors)."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import CorruptMetadataError, MisuseError, NoClusterError
from quire.core.ids import ID_MAX
from quire.metadata.keys import DISABLE, LOST_DELAY, lock_key, missing_key
from quire.metadata.records import OF_LEDGERS
from quire.metadata.store import check_key
from quire.metadata.zookeeper.options import ZookeeperLayout, ZookeeperOptions, parse_uri
from quire.metadata.zookeeper.paths import (
    SHORT_ID_END,
    KeyPaths,
    digit_range,
    layout_text,
    parse_layout,
)

VECTORS = Path(__file__).parents[2] / "vectors"
PATHS = json.loads((VECTORS / "ledger_paths.json").read_text())
LAYOUTS = json.loads((VECTORS / "layout.json").read_text())
TREE = json.loads((VECTORS / "zookeeper.json").read_text())["tree"]


@pytest.mark.parametrize("layout", ZookeeperLayout, ids=lambda layout: layout.value)
def test_ledger_paths_are_javas_and_come_back(layout):
    paths = KeyPaths("/ledgers", layout)
    for case in PATHS:
        if case[layout.value] is None or (
            layout is ZookeeperLayout.LEGACY_HIERARCHICAL and case["ledger_id"] >= SHORT_ID_END
        ):
            continue
        path = paths.path(OF_LEDGERS.key(case["ledger_id"]))
        assert path == case[layout.value]
        assert paths.key(path) == OF_LEDGERS.key(case["ledger_id"])


def test_a_layout_without_long_paths_says_so():
    with pytest.raises(MisuseError, match="2147483646"):
        KeyPaths("/ledgers", ZookeeperLayout.LEGACY_HIERARCHICAL).ledger(SHORT_ID_END)


@pytest.mark.parametrize("layout", ZookeeperLayout, ids=lambda layout: layout.value)
def test_layouts_are_javas_text(layout):
    text = next(
        text for name, text in LAYOUTS["layouts"].items() if f".{name}:" in layout_text(layout).decode()
    )
    assert layout_text(layout).decode() == text
    assert parse_layout(text.encode(), "/ledgers") is layout
    assert parse_layout(text.encode() + b"\n", "/ledgers") is layout


def test_what_is_no_layout_is_refused():
    for case in LAYOUTS["parse"]:
        if case["result"] == "IOException":
            with pytest.raises(CorruptMetadataError, match="LAYOUT is damaged"):
                parse_layout(case["text"].encode(), "/ledgers")
    with pytest.raises(NoClusterError, match="Etcd"):
        parse_layout(LAYOUTS["layouts"]["etcd"].encode(), "/ledgers")
    assert parse_layout(b"1\nhierarchical:1", "/ledgers") is ZookeeperLayout.HIERARCHICAL


def test_every_znode_of_a_used_cluster_is_a_key_or_none():
    """Ledgers, bookies, cookies and under-replicated marks are keys; what belongs to Java alone is not."""
    paths = KeyPaths("/ledgers", ZookeeperLayout.HIERARCHICAL)
    keys = {node["path"]: paths.key(node["path"]) for node in TREE}
    for path, key in keys.items():
        assert key is None or paths.path(key) == path
    spaces = [key.split("/")[0] for key in keys.values() if key]
    assert spaces.count("ledgers") == sum("/L0" in path for path in keys)
    assert spaces.count("bookies") == sum(node["ephemeral"] and "available" in node["path"] for node in TREE)
    marks = [make(ledger_id) for make in (missing_key, lock_key) for ledger_id in (9, 10)]
    assert {key for key in keys.values() if key and key.startswith("underreplication/")} == {
        *marks,
        "underreplication/auditorelection/0000000000000000000",
        LOST_DELAY,
    }
    assert set(spaces) == {"ledgers", "bookies", "cookies", "underreplication"}


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (missing_key(0x1234_5678_9ABC), "underreplication/ledgers/0000/1234/5678/9abc/urL20015998343868"),
        (missing_key(7), "underreplication/ledgers/0000/0000/0000/0007/urL0000000007"),
        (lock_key(7), "underreplication/locks/urL0000000007"),
        (lock_key(ID_MAX), f"underreplication/locks/urL{ID_MAX}"),
        (
            "underreplication/auditorelection/0000000000000000012",
            "underreplication/auditorelection/V_0000000012",
        ),
        (DISABLE, "underreplication/disable"),
        ("underreplication/LAYOUT", "quire/underreplication+/LAYOUT"),
        ("underreplication/ledgers/x", "quire/underreplication+/ledgers+/x"),
    ],
)
def test_marks_of_repair_lie_where_java_has_them(key, path):
    paths = KeyPaths("/ledgers", ZookeeperLayout.HIERARCHICAL)
    assert paths.path(key) == f"/ledgers/{path}"
    assert paths.key(f"/ledgers/{path}") == key
    assert any(
        f"/ledgers/{path}" == place or f"/ledgers/{path}".startswith(place + "/")
        for place in paths.watched(key)
    )


@pytest.mark.parametrize(
    "path",
    [
        "ledgers/0000/0000/0000/0007/urL0000000008",
        "ledgers/0000/0000/0000/0007/urL7",
        "ledgers/0000/0000/0007/urL0000000007",
        "ledgers/0000/0000/0000/000G/urL0000000016",
        "ledgers/ffff/ffff/ffff/ffff/urL18446744073709551615",
        "locks/urL7",
        "locks/L0000000007",
        "auditorelection/V_",
        "LAYOUT",
        "checkallledgersctime",
    ],
)
def test_what_is_no_mark_has_no_key(path):
    assert KeyPaths("/ledgers", ZookeeperLayout.HIERARCHICAL).key(f"/ledgers/underreplication/{path}") is None


@given(st.integers(0, ID_MAX))
def test_every_mark_is_found_by_walking_the_folders(ledger_id):
    paths = KeyPaths("/ledgers", ZookeeperLayout.HIERARCHICAL)
    tree = paths.trees[1]
    names = tuple(tree.path(ledger_id).removeprefix(tree.root + "/").split("/"))
    assert tree.number(names) == ledger_id
    for depth in range(len(names)):
        first, last = tree.children(names[:depth])(names[depth])
        assert first <= ledger_id <= last
    assert first == last


parts = st.text(min_size=1, max_size=6).filter(lambda part: part.isprintable() and "/" not in part)
keys = st.lists(parts, min_size=1, max_size=4).map("/".join)


@given(keys, st.sampled_from(ZookeeperLayout))
def test_every_key_has_a_znode_of_its_own(key, layout):
    try:
        check_key(key)
    except MisuseError:
        return
    paths = KeyPaths("/a/ledgers", layout)
    path = paths.path(key)
    assert paths.key(path) == key
    assert path.isascii()
    assert path.startswith("/a/ledgers/quire/")
    assert not {"", ".", ".."} & set(path.split("/")[1:])
    assert any(path == place or path.startswith(place + "/") for place in paths.watched(key[:2]))


@given(
    st.integers(0, ID_MAX),
    st.sampled_from([ZookeeperLayout.HIERARCHICAL, ZookeeperLayout.LONG_HIERARCHICAL, ZookeeperLayout.FLAT]),
)
def test_every_ledger_is_found_by_walking_the_folders(ledger_id, layout):
    paths = KeyPaths("/ledgers", layout)
    names = tuple(paths.ledger(ledger_id).split("/")[2:])
    assert paths.ledger_id(names) == ledger_id
    for depth in range(len(names)):
        first, last = paths.ledger_folders(names[:depth])(names[depth])
        assert first <= ledger_id <= last
    assert first == last == ledger_id


@pytest.mark.parametrize(
    "name", ["available", "cookies", "quire", "idgen", "idgen-long", "LAYOUT", "L", "Lx", "0"]
)
def test_a_znode_beside_the_ledgers_is_no_folder_of_ledgers(name):
    for layout in ZookeeperLayout:
        assert KeyPaths("/ledgers", layout).ledger_folders(())(name) is None


@given(st.text("0123456789/a!", max_size=21), st.none() | st.text("0123456789:a!", max_size=22))
def test_ranges_of_ids_are_those_of_their_keys(rest, after):
    prefix, after = "ledgers/" + rest, None if after is None else "ledgers/" + after
    span = digit_range(prefix, after)
    probes = {0, 1, 9, 10, ID_MAX, 12 * 10**17, 123456789}
    for text in (rest, (after or "")[8:]):
        digits = "".join(c for c in text if c.isdigit())[:19]
        probes |= {int(digits.ljust(19, fill) or 0) for fill in "019"}
    for number in {n for probe in probes for n in (probe - 1, probe, probe + 1) if 0 <= n <= ID_MAX}:
        key = OF_LEDGERS.key(number)
        wanted = key.startswith(prefix) and (after is None or key > after)
        assert wanted == (span is not None and span[0] <= number <= span[1])


# --- URIs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "hosts", "root", "layout"),
    [
        ("zk://h1:2181/ledgers", ("h1:2181",), "/ledgers", None),
        ("zookeeper://h1", ("h1:2181",), "/ledgers", None),
        ("zk://[::1]:1;[fe80::1%eth0]/l", ("[::1]:1", "[fe80::1%eth0]:2181"), "/l", None),
        ("zk://h1,h2:99/", ("h1:2181", "h2:99"), "/ledgers", None),
        ("zk+hierarchical://h1:1;h2:2/a/b/", ("h1:1", "h2:2"), "/a/b", ZookeeperLayout.HIERARCHICAL),
        ("zk+longhierarchical://[::1]:2181/x", ("[::1]:2181",), "/x", ZookeeperLayout.LONG_HIERARCHICAL),
        ("zk+null://h/x", ("h:2181",), "/x", None),
        ("zk+flat://h/x", ("h:2181",), "/x", ZookeeperLayout.FLAT),
    ],
)
def test_uris_are_bookkeepers_and_ours(uri, hosts, root, layout):
    address = parse_uri(uri)
    assert (address.hosts, address.root, address.layout) == (hosts, root, layout)
    assert address.options == ZookeeperOptions()


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("zk://", "no ZooKeeper cluster"),
        ("zk://h/ledgers?ledger_format=1", "`ledger_format` must be one of 3, 2, got 1"),
        ("zk://h/ledgers?ledger_format=new", "`ledger_format` must be an integer from 1 to 2147483647, got"),
        ("zk:///ledgers", "names no server"),
        ("zk://h:x/ledgers", "not HOST:PORT"),
        ("zk://h:0/ledgers", "not HOST:PORT"),
        ("zk://::1:1/l", "'::1:1' is not HOST:PORT; an IPv6 address stands in brackets, as in [::1]:2181"),
        ("zk://[::1:2181/l", "'[::1:2181' is not HOST:PORT; an IPv6 address stands in brackets"),
        ("zk://[here]:2181/l", "'[here]:2181' is not HOST:PORT"),
        ("zk://h:1,,h2:2/l", "a server is missing between two commas"),
        ("zk://me:secret@h:1/l", "a user and a password do not stand in a cluster's URI"),
        ("zk://h/a//b", "dotted part"),
        ("zk://h/a/../b", "dotted part"),
        ("zk+ms://h/a", "no layout 'ms'"),
        ("zk://h/a?timeout=1", "unknown option 'timeout'"),
        ("zk://h/a?session_timeout_ms=soon", "`session_timeout_ms` must be an integer"),
        ("zk://h/a?session_timeout_ms=2147483648", "must be an integer from 1 to 2147483647"),
        pytest.param(f"zk://h/a?patience_ms={'1' * 5000}", "must be an integer", id="5000 digits"),
        ("zk://h/a?acl=none", "`acl` must be one of open, creator"),
        ("zk://h/a?acl=creator", "name credentials=FILE"),
        ("zk://h/a?credentials=/does/not/exist", "cannot be read"),
    ],
)
def test_what_is_no_uri_says_why(uri, message):
    with pytest.raises(NoClusterError, match=re.escape(message)):
        parse_uri(uri)


def test_credentials_come_from_a_file_and_are_not_shown(tmp_path):
    file = tmp_path / "secret"
    file.write_text("digest:me:pass:word\n")
    options = parse_uri(f"zk://h/a?acl=creator&credentials={file}&session_timeout_ms=500").options
    assert options.credentials == ("digest", "me", "pass:word")
    assert (options.acl, options.session_timeout_ms) == ("creator", 500)
    assert "word" not in repr(options)
    file.write_text("me:password")
    with pytest.raises(NoClusterError, match="digest:USER:PASSWORD"):
        parse_uri(f"zk://h/a?credentials={file}")
