"""Every metadata store against a model: a dictionary with a counter (tests/conformance/test_metadata_store.py)."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from conformance.metadata_drivers import EtcdDriver, ZookeeperDriver
from quire.core.errors import AlreadyExistsError
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.sqlite.file import SqliteOptions
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Create, Delete, KeyMissingError, Put, Require, VersionConflictError
from support.rounds import rounds

KEYS = ["a", "a/1", "a/1/x", "a/2", "b", "b/é"]
CLIENTS = 3
clients = st.integers(0, CLIENTS - 1)
keys = st.sampled_from(KEYS)
values = st.binary(max_size=3)
choices = st.integers(0, 3)


class StoreMachine(RuleBasedStateMachine):
    """Clients of one store do what the model does; a watch hears of all of it."""

    versions_restart = False
    silent_on_nothing = False
    """Whether a watch keeps silent of a key that one change both creates and deletes, which nobody can have seen."""

    async def open(self):
        raise NotImplementedError

    async def kill(self, store):
        store.abandon()

    def __init__(self):
        super().__init__()
        self.runner = asyncio.Runner()
        self.model = {}
        self.versions = {}
        self.owners = {}
        self.held = {}
        self.told = set()
        self.ids = set()

    def run(self, work):
        return self.runner.run(work)

    @initialize()
    def start(self):
        async def begin():
            self.stores = [await self.open() for _ in range(CLIENTS)]
            self.changes = self.stores[0].watch("a")
            await self.changes.__aenter__()
            await anext(self.changes)

        self.run(begin())

    def teardown(self):
        async def end():
            await self.changes.__aexit__(None, None, None)
            for store in self.stores:
                await store.close()

        try:
            if hasattr(self, "stores"):
                self.run(end())
        finally:
            self.runner.close()

    def version_of(self, key, choice):
        """Mostly the right version, else one that the key had, or none that it can have."""
        known = self.versions.get(key, [])
        return known[-1 - choice] if choice < len(known) else 10**9

    def ops_of(self, drawn):
        ops = []
        for kind, key, value, choice in drawn:
            version = self.version_of(key, choice)
            ops.append(
                {
                    "create": Create(key, value),
                    "put": Put(key, value, version),
                    "delete": Delete(key, None if choice == 3 else version),
                    "require": Require(key, None if choice == 3 else version),
                }[kind]
            )
        return ops

    def expect(self, ops):
        """The model's verdict: the refusal, or the new state (None: a version to be given)."""
        staged = dict(self.model)
        for op in ops:
            found = staged.get(op.key)
            if isinstance(op, Create):
                if found:
                    return AlreadyExistsError, None
                staged[op.key] = (op.value, None)
                continue
            if isinstance(op, Require) and op.version is None:
                if found:
                    return VersionConflictError, None
                continue
            if not found:
                return KeyMissingError, None
            if not (isinstance(op, Delete) and op.version is None) and found[1] != op.version:
                return VersionConflictError, None
            if isinstance(op, Put):
                staged[op.key] = (op.value, None)
            elif isinstance(op, Delete):
                del staged[op.key]
        return None, staged

    @rule(
        client=clients,
        drawn=st.lists(
            st.tuples(st.sampled_from(["create", "put", "delete", "require"]), keys, values, choices),
            min_size=1,
            max_size=3,
        ),
    )
    def change(self, client, drawn):
        ops = self.ops_of(drawn)
        refusal, staged = self.expect(ops)
        if refusal is not None:
            with pytest.raises(refusal) as caught:
                self.run(self.stores[client].multi(ops))
            assert type(caught.value) is refusal
            return
        given = self.run(self.stores[client].multi(ops))
        for op, version in zip(ops, given, strict=True):
            assert (version == 0) == isinstance(op, Delete | Require)
            if version:
                history = self.versions.setdefault(op.key, [])
                assert not history or version >= history[-1]
                history.append(version)
            if isinstance(op, Delete) and self.versions_restart:
                self.versions.pop(op.key, None)
            seen = op.key in self.model or op.key in staged or not self.silent_on_nothing
            if not isinstance(op, Require) and seen:
                self.touched(op.key)
            if isinstance(op, Delete):
                self.owners.pop(op.key, None)
        latest = {op.key: version for op, version in zip(ops, given, strict=True) if version}
        self.model = {k: (v, latest[k] if version is None else version) for k, (v, version) in staged.items()}

    def touched(self, key):
        if key.startswith("a"):
            self.told.add(key)

    @rule(client=clients, key=keys, value=values)
    def register(self, client, key, value):
        if key in self.model:
            with pytest.raises(AlreadyExistsError):
                self.run(self.stores[client].register(key, value))
            return
        registration = self.run(self.stores[client].register(key, value, again=False))
        version = self.run(self.stores[client].get(key)).version
        self.versions.setdefault(key, []).append(version)
        self.model[key] = (value, version)
        self.owners[key] = client
        self.held[key, client] = registration
        self.touched(key)

    @rule(client=clients)
    def die(self, client):
        """All that a client registered goes with it; another takes its place."""
        if client == 0:
            return  # it has the watch
        self.run(self.kill(self.stores[client]))
        for key in [k for k, owner in self.owners.items() if owner == client]:
            del self.owners[key]
            del self.model[key]
            if self.versions_restart:
                self.versions.pop(key, None)
            self.touched(key)
        self.stores[client] = self.run(self.open())

    @rule(client=clients)
    def draw_id(self, client):
        number = self.run(self.stores[client].next_ledger_id())
        assert number not in self.ids
        self.ids.add(number)

    @rule(
        client=clients,
        prefix=st.sampled_from(["", "a", "a/", "b/", "c"]),
        limit=st.integers(1, 4),
        after=st.none() | keys,
    )
    def pages(self, client, prefix, limit, after):
        found = self.run(self.stores[client].list(prefix, after=after, limit=limit))
        wanted = sorted(k for k in self.model if k.startswith(prefix) and (after is None or k > after))[
            :limit
        ]
        assert [(k, (v.value, v.version)) for k, v in found] == [(k, self.model[k]) for k in wanted]

    @rule()
    def hear(self):
        async def listen():
            heard = set()
            async with asyncio.timeout(20):
                while not self.told <= heard:
                    changed = await anext(self.changes)
                    assert not changed.reread_all
                    heard |= changed

        self.run(listen())
        self.told.clear()

    @invariant()
    def all_clients_see_the_model(self):
        for store in getattr(self, "stores", []):
            found = self.run(store.list(""))
            assert {k: (v.value, v.version) for k, v in found} == self.model


class MemoryMachine(StoreMachine):
    def __init__(self):
        super().__init__()
        self.space = MemorySpace()

    async def open(self):
        return MemoryStore(self.space)


class SqliteMachine(StoreMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()

    def teardown(self):
        super().teardown()
        self.folder.cleanup()

    async def open(self):
        # No registration may end by time here, and deletions are trimmed often.
        options = SqliteOptions(session_timeout_ms=600_000, tombstones_kept=1000)
        return await SqliteStore.open(Path(self.folder.name) / "m.db", create=True, options=options)


class ZookeeperMachine(StoreMachine):
    versions_restart = True

    def __init__(self):
        super().__init__()
        self.driver = ZookeeperDriver(None)

    async def open(self):
        return await self.driver.open(session_timeout_ms=600_000)

    async def kill(self, store):
        await self.driver.kill(store)


class EtcdMachine(StoreMachine):
    silent_on_nothing = True

    def __init__(self):
        super().__init__()
        self.driver = EtcdDriver(None)

    async def open(self):
        return await self.driver.open(session_timeout_ms=600_000)

    async def kill(self, store):
        await self.driver.kill(store)


@pytest.mark.parametrize(
    ("machine", "examples"),
    [
        (MemoryMachine, 60),
        (SqliteMachine, 25),
        pytest.param(ZookeeperMachine, rounds(5, 50), marks=pytest.mark.interop),
        pytest.param(EtcdMachine, rounds(5, 50), marks=pytest.mark.interop),
    ],
)
def test_stores_do_what_the_model_does(machine, examples):
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None)
    )
