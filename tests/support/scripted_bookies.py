"""Bookies that do as a test says: the methods of `BookieClient` that a writer uses, without sockets.

They check what they get like bookies do: the body's checksum, the run's header, every entry's digest.
"""

import asyncio
from collections import deque

from quire.core.answers import Answer
from quire.metadata.memory import MemoryStore
from quire.metadata.records import AllRecords
from quire.wire.responses import AddReply
from quire.wire.run import RunView, checksum
from support.writers import new_writer

SOCKET_BYTES = 64 * 1024
"""What a stopped bookie's connection still takes."""


class ScriptedBookies:
    """Named bookies with a mode each: ok, stopped, dead, registered (dead, and nobody knows it yet), read_only, fenced, refusing."""

    def __init__(self, names):
        self.names = list(names)
        self.mode = dict.fromkeys(names, "ok")
        self.entries = {name: {} for name in names}
        self.lacs = {name: -1 for name in names}
        self.explicit = {name: [] for name in names}
        self.frames = {name: 0 for name in names}
        self.waiting = {name: deque() for name in names}
        self.taken = dict.fromkeys(names, 0)
        self.dropped = []
        self.followed = set()

    # --- what the test does ------------------------------------------------------------------------------------------

    def set(self, name, mode):
        self.mode[name] = mode
        if mode == "ok":
            waiting, self.waiting[name], self.taken[name] = self.waiting[name], deque(), 0
            for frame in waiting:
                self._serve(name, *frame)
        elif mode in ("dead", "registered"):
            waiting, self.waiting[name] = self.waiting[name], deque()
            for _, _, requester, tag, *_ in waiting:
                asyncio.get_running_loop().call_soon(requester.add_answered, tag, Answer.UNREACHABLE)

    def time_out(self, name):
        waiting, self.waiting[name] = self.waiting[name], deque()
        for _, _, requester, tag, *_ in waiting:
            requester.add_answered(tag, Answer.TIMED_OUT)

    # --- what the writer calls ---------------------------------------------------------------------------------------

    def writable(self, needs=()):
        return sorted(name for name in self.names if self.mode[name] not in ("dead", "read_only"))

    def add_run(self, bookie, run, requester, tag, timeout_ms):
        access, body, body_crc, lac, recovery, *_ = run
        assert not recovery
        assert body_crc == checksum(body)
        frame = (access, body, requester, tag, lac)
        if self.mode[bookie] == "stopped":
            self.waiting[bookie].append(frame)
            return False
        asyncio.get_running_loop().call_soon(self._serve, bookie, *frame)
        return True

    def _serve(self, bookie, access, body, requester, tag, lac):
        answers = {"read_only": Answer.READ_ONLY, "fenced": Answer.FENCED, "refusing": Answer.UNAUTHORISED}
        answers |= dict.fromkeys(("dead", "registered"), Answer.UNREACHABLE)
        mode = self.mode[bookie]
        if mode == "stopped":
            self.waiting[bookie].append((access, body, requester, tag, lac))
            return
        if mode in answers:
            requester.add_answered(tag, answers[mode])
            return
        run = RunView.parse(body)
        run.check_identity()
        for entry_id, raw in run.entries():
            entry = access.digest.open(raw, access.ledger_id, entry_id)
            assert entry.last_add_confirmed == lac
            known = self.entries[bookie].setdefault(entry_id, (bytes(entry.payload), entry.length))
            assert known == (bytes(entry.payload), entry.length), "an id has one content"
        self.frames[bookie] += 1
        self.lacs[bookie] = max(self.lacs[bookie], lac)
        requester.answered(tag, AddReply(Answer.OK, followed=bookie in self.followed))

    def unsent_bytes(self, bookie, requester):
        unsent = sum(len(frame[1]) for frame in self.waiting[bookie] if frame[2] is requester)
        return max(0, unsent - SOCKET_BYTES)

    @property
    def anything_unsent(self):
        return any(self.waiting.values())

    def entries_answered(self, bookie):
        return 0

    def all_sent(self, bookie, requester):
        return not self.unsent_bytes(bookie, requester)

    def drop(self, bookie, requester):
        self.dropped.append(bookie)
        self.waiting[bookie] = deque(frame for frame in self.waiting[bookie] if frame[2] is not requester)

    def forget(self, requester):
        for bookie in self.names:
            self.waiting[bookie] = deque(frame for frame in self.waiting[bookie] if frame[2] is not requester)

    def takes_lacs(self, bookie):
        return False

    def channels_with(self, feature, bookies):
        return ()

    def follow(self, follower):
        """Registrations do not change here: tests/unit/client/test_bookies_leave.py."""

    unfollow = follow

    async def probe(self, bookies, *, timeout_ms):
        return {bookie: (await self.info(bookie, timeout_ms=timeout_ms))[0] for bookie in bookies}

    async def info(self, bookie, access=None, *, timeout_ms=0):
        return (Answer.OK if self.mode[bookie] in ("ok", "fenced") else Answer.TIMED_OUT), {}

    def are_refused(self, bookies):
        return False

    are_in_trouble = are_refused

    def troubles(self):
        return ""

    def write_lac(self, bookie, access, lac, *, term=0, timeout_ms=0):
        if self.mode[bookie] == "ok":
            self.explicit[bookie].append(lac)
            self.lacs[bookie] = max(self.lacs[bookie], lac)


class ScriptedCluster:
    """Scripted bookies b1, b2, … and a store in memory."""

    def __init__(self, count=3, store=None):
        self.store = store or MemoryStore()
        self.records = AllRecords(self.store)
        self.ledgers = self.records.ledgers
        self.bookies = ScriptedBookies([f"b{number}" for number in range(1, count + 1)])

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.store.close()

    async def writer(self, config, size=3, **settings):
        return await new_writer(self.bookies, self.records, config, self.bookies.names[:size], **settings)
