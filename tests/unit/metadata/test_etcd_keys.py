"""What a multi-operation becomes in etcd, against the memory store; and the URIs. No server."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import NoClusterError, QuireError
from quire.metadata.etcd.keys import KeyLayout, Plan, prefix_end, refuse
from quire.metadata.etcd.options import EtcdAddress, EtcdOptions, parse_uri
from quire.metadata.memory import MemorySpace
from quire.metadata.store import Create, Delete, Put, Require
from quire.wire.proto.etcd_pb2 import Compare

LAYOUT = KeyLayout("/ledgers")
keys = st.sampled_from(["a", "b", "c"])
versions = st.integers(-1, 4)
ops = st.one_of(
    st.builds(Create, keys, st.binary(max_size=1)),
    st.builds(Put, keys, st.binary(max_size=1), versions),
    st.builds(Delete, keys, st.none() | versions),
    st.builds(Require, keys, st.none() | versions),
)


def holds(condition, stored):
    version = stored.get(condition.key, (b"", 0))[1]
    if condition.target == Compare.MOD:
        return version == condition.mod_revision
    assert condition.target == Compare.CREATE
    return (version == 0) == (condition.result == Compare.EQUAL)


def carry_out(plan, stored, revision):
    """What etcd does with a plan: conditions on the state before, each key once; None if it refuses."""
    if not plan.possible or not all(holds(condition, stored) for condition in plan.conditions):
        return None
    after = dict(stored)
    touched = []
    for effect in plan.effects():
        if effect.WhichOneof("request") == "request_put":
            put = effect.request_put
            assert put.key in stored or not put.ignore_lease
            touched.append(put.key)
            after[put.key] = (put.value, revision)
        else:
            touched.append(effect.request_delete_range.key)
            del after[effect.request_delete_range.key]
    assert len(touched) == len(set(touched))
    return after


@given(st.lists(keys, max_size=3, unique=True), st.lists(ops, min_size=1, max_size=5))
def test_a_plan_does_what_the_memory_store_does(present, asked):
    space = MemorySpace()
    for key in present:
        space.apply([Create(key, b"0")])
    stored = {LAYOUT.key(key): (row.value, row.version) for key, row in space.rows.items()}
    before = {key: row.version for key, row in space.rows.items()}
    plan = Plan.of(LAYOUT, asked)
    after = carry_out(plan, stored, space.revision + 1)
    try:
        space.apply(asked)
    except QuireError as error:
        if names_its_own_version(asked, before, space.revision + 1):
            return
        assert after is None
        key = error.ids["key"]
        with pytest.raises(type(error)) as caught:
            refuse(asked, ((name, before.get(name)) for name in plan.staged))
        assert caught.value.ids["key"] == key
    else:
        if after is None:
            assert names_its_own_version(asked, before, space.revision)
        else:
            assert after == {LAYOUT.key(k): (row.value, row.version) for k, row in space.rows.items()}


def names_its_own_version(asked, before, revision):
    """Whether an operation names the version that this very change gives, or 0, which stands for it: nobody can know it."""
    return any(
        getattr(op, "version", None) in {revision, 0} and any(o.key == op.key for o in asked[:i])
        for i, op in enumerate(asked)
    )


def test_keys_come_back_and_prefixes_end():
    for name in ("a", "logs/ü", "b/\U0001f4a7"):
        key = LAYOUT.key(name)
        assert LAYOUT.name(key) == name
        assert key < key + b"\0" < prefix_end(key)
    assert prefix_end(LAYOUT.key("a")) == LAYOUT.key("b")


@pytest.mark.parametrize(
    ("uri", "hosts", "root"),
    [
        ("etcd://h", ("h:2379",), "/ledgers"),
        ("etcd://h:1,i:2/x/y/", ("h:1", "i:2"), "/x/y"),
        ("etcd://[::1]:5;j", ("[::1]:5", "j:2379"), "/ledgers"),
    ],
)
def test_a_uri_names_servers_and_a_root(uri, hosts, root):
    assert parse_uri(uri) == EtcdAddress(hosts, root)


def test_options_and_credentials_come_from_the_uri(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("password:me:a:b\n")
    address = parse_uri(f"etcd://h?session_timeout_ms=5&patience_ms=7&credentials={secret}&tls_ca=/ca")
    assert address.options == EtcdOptions(5, 7, ("me", "a:b"), "/ca")
    assert "a:b" not in repr(address)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("etcd://", "is no etcd cluster"),
        ("etcd:///x", "names no server"),
        ("etcd://h:x/", "not HOST:PORT"),
        ("etcd://[::1:2379/l", "'[::1:2379' is not HOST:PORT; an IPv6 address stands in brackets"),
        ("etcd://h/a//b", "empty or dotted part"),
        ("etcd://h?x=1", "unknown option 'x'"),
        ("etcd://h?patience_ms=-1", "`patience_ms` must be an integer"),
        ("etcd://h?credentials=/none/at/all", "cannot be read"),
        ("etcd://h?tls_key=/k&tls_ca=/c", "go together"),
        ("etcd://h?tls_key=/k&tls_certificate=/c", "name tls_ca too"),
    ],
)
def test_what_is_no_uri_is_said(uri, message):
    with pytest.raises(NoClusterError, match=re.escape(message)):
        parse_uri(uri)
