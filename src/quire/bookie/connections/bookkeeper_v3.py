"""What a bookie answers to V3's requests, other than adds in the layout that Java writes.

Source: `docs/formats/bookkeeper-protocol.md`, "V3".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from quire.bookie.about import disk_facts
from quire.bookie.connections.bookkeeper_adds import AddCollector, Adder
from quire.bookie.connections.bookkeeper_lookup import Lookup, as_request
from quire.bookie.connections.client_connection import ClientConnection
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY
from quire.wire import bookkeeper, v3
from quire.wire.entry import Buffer
from quire.wire.native import Flag, Kind
from quire.wire.proto import bookkeeper_protocol_pb2 as pb

_WITHOUT_VERSION: Final = frozenset({pb.AUTH, pb.START_TLS})


class V3Requests:
    """Serves the V3 requests of one connection.

    Args:
        connection: whose they are.
        lookup: the entries that this turn's requests have seen.
        send: takes the buffers of a response.
    """

    def __init__(
        self, connection: ClientConnection, lookup: Lookup, send: Callable[[list[Buffer]], None]
    ) -> None:
        self._connection = connection
        self._server = server = connection.server
        self._ledgers = server.ledgers
        self._lookup = lookup
        self._send = send
        self._unknown = Answer.ERROR if server.config.unknown_is_error else Answer.UNKNOWN
        self._handlers: dict[int, Callable[[pb.Request], None]] = {
            pb.READ_ENTRY: self._read,
            pb.WRITE_LAC: self._write_lac,
            pb.READ_LAC: self._read_lac,
            pb.GET_BOOKIE_INFO: self._info,
            pb.FORCE_LEDGER: self._force,
            pb.GET_LIST_OF_ENTRIES_OF_LEDGER: self._list,
            pb.AUTH: self._auth,
        }

    def serve(self, request: pb.Request, adds: AddCollector) -> None:
        """Answer a request, now or when it can be."""
        header = request.header
        if header.operation not in _WITHOUT_VERSION and header.version != v3.VERSION:
            served = header.operation in self._handlers or header.operation == pb.ADD_ENTRY
            status = bookkeeper.BAD_VERSION[1] if served else bookkeeper.v3_code(Answer.BAD_REQUEST)
            self._answer(request, status)
            return
        name = v3.REQUEST_BODY.get(header.operation)
        handler = self._handlers.get(header.operation)
        if header.operation == pb.ADD_ENTRY and request.HasField("addRequest"):
            self._add(request, adds)
        elif handler is None or name is None or not request.HasField(name):
            self._bare(request, Answer.BAD_REQUEST)
        else:
            handler(request)

    # --- responses ---------------------------------------------------------------------------------------------------

    def _bare(self, request: pb.Request, answer: Answer) -> None:
        """A response of header and status only."""
        self._send([v3.frame_of(v3.response(request.header, bookkeeper.v3_code(answer)))])

    def _answer(self, request: pb.Request, status: int, **fields: Any) -> None:
        """A response with the body of its operation: the request's ids, the status once more, and the result."""
        if self._connection.transport is None:
            return
        message = v3.response(request.header, status)
        operation = request.header.operation
        name = v3.RESPONSE_BODY.get(operation)
        if name is not None and name not in {"authResponse", "startTLSResponse"}:
            body: Any = getattr(message, name)
            asked: Any = getattr(request, v3.REQUEST_BODY[operation])
            body.status = status
            for field in ("ledgerId", "entryId"):
                if field in body.DESCRIPTOR.fields_by_name:
                    setattr(body, field, getattr(asked, field))
            for field, value in fields.items():
                setattr(body, field, value)
        self._send([v3.frame_of(message)])

    def _refuse(self, request: pb.Request, answer: Answer) -> None:
        said = self._unknown if answer is Answer.UNKNOWN else answer
        self._answer(request, bookkeeper.v3_code(said))

    # --- adds --------------------------------------------------------------------------------------------------------

    def _add(self, request: pb.Request, adds: AddCollector) -> None:
        """An add that looks otherwise than Java's: with write flags, or with fields in another order."""
        add, txn_id = request.addRequest, request.header.txnId
        answer = Answer.UNAUTHORISED
        if len(add.masterKey) == bookkeeper.KEY_BYTES:
            # What is to be synced later is synced now: a response never says less than was asked for.
            adder = Adder(add.ledgerId, add.masterKey, v3.has_flag(add, v3.RECOVERY_ADD), None)
            answer = adds.add(adder, add.entryId, add.body, txn_id)
        if answer is not Answer.OK:
            self._refuse(request, answer)

    # --- reads -------------------------------------------------------------------------------------------------------

    def _read(self, request: pb.Request) -> None:
        read = request.readRequest
        ledger_id, entry_id = read.ledgerId, read.entryId
        if ledger_id < 0 or entry_id < bookkeeper.LAST_ENTRY:
            self._refuse(request, Answer.BAD_REQUEST)
        elif v3.has_flag(read, v3.FENCE_LEDGER):
            key = read.masterKey if len(read.masterKey) == bookkeeper.KEY_BYTES else b""
            asked = as_request(Kind.READ, ledger_id, key=key, flags=Flag.FENCE)
            answer_to = self._connection.unless_congested(
                partial(self._read, request), lambda answer: self._after_fence(request, answer)
            )
            callback = self._ledgers.unknown_ledgers.without_deleted(ledger_id, answer_to, self._connection)
            self._ledgers.fence(asked, callback, self._connection)
        elif read.HasField("previousLAC"):
            self._long_poll(request)
        else:
            self._plain_read(request)

    def _plain_read(self, request: pb.Request) -> None:
        read = request.readRequest
        answer, entry, lac = self._lookup.entry(read.ledgerId, read.entryId)
        if answer is Answer.OK:
            self._answer(request, 0, body=bytes(entry), maxLAC=lac)
        else:
            self._refuse(request, answer)

    def _after_fence(self, request: pb.Request, answer: Answer) -> None:
        entry: Buffer = b""
        if answer is Answer.OK:
            answer, entry, _ = self._lookup.entry(request.readRequest.ledgerId, request.readRequest.entryId)
            self._lookup.clear()
        if answer is Answer.OK:
            self._answer(request, 0, body=bytes(entry))
        else:
            self._refuse(request, answer)

    # --- long polls --------------------------------------------------------------------------------------------------

    def _long_poll(self, request: pb.Request) -> None:
        read = request.readRequest
        piggyback = v3.has_flag(read, v3.ENTRY_PIGGYBACK)
        possible = read.previousLAC >= NO_ENTRY and not (piggyback and read.entryId != bookkeeper.LAST_ENTRY)
        if not possible or self._ledgers.term(read.ledgerId):
            self._refuse(request, Answer.BAD_REQUEST)
            return
        known = self._ledgers.lac(read.ledgerId)
        wait = min(max(read.timeOut, 0) / 1000, self._server.config.long_poll_seconds_max)
        if known is None or known > read.previousLAC or not wait:
            self._end_poll(request, waited=False)
        else:

            def wake() -> None:
                self._end_poll(request, waited=True)
                self._lookup.clear()

            if not self._connection.polls.wait(read.ledgerId, read.previousLAC, wait, wake):
                self._refuse(request, Answer.TOO_BUSY)

    def _end_poll(self, request: pb.Request, *, waited: bool) -> None:
        read = request.readRequest
        if not v3.has_flag(read, v3.ENTRY_PIGGYBACK):
            self._plain_read(request)
            return
        lac = self._ledgers.lac(read.ledgerId)
        if lac is None:
            answer, _, _ = self._lookup.entry(read.ledgerId, 0)
            self._refuse(request, answer)
            return
        if lac > read.previousLAC and not self._connection.is_congested():
            answer, entry, _ = self._lookup.entry(read.ledgerId, read.previousLAC + 1)
            if answer is Answer.OK:
                fields: dict[str, Any] = {
                    "entryId": read.previousLAC + 1,
                    "body": bytes(entry),
                    "maxLAC": lac,
                }
                if waited:
                    fields["lacUpdateTimestamp"] = self._server.clock.wall_ms()
                self._answer(request, 0, **fields)
                return
        self._answer(request, 0, maxLAC=lac)

    # --- LACs --------------------------------------------------------------------------------------------------------

    def _write_lac(self, request: pb.Request) -> None:
        asked = request.writeLacRequest
        if asked.ledgerId < 0:
            self._refuse(request, Answer.BAD_REQUEST)
            return
        key = asked.masterKey if len(asked.masterKey) == bookkeeper.KEY_BYTES else b""
        self._ledgers.set_explicit_lac(
            as_request(Kind.WRITE_LAC, asked.ledgerId, key=key, body=asked.body),
            lambda answer: self._refuse(request, answer),
            self._connection,
        )

    def _read_lac(self, request: pb.Request) -> None:
        ledger_id = request.readLacRequest.ledgerId
        if ledger_id < 0 or self._ledgers.term(
            ledger_id
        ):  # no entry of a stream is one that this protocol can say
            self._refuse(request, Answer.BAD_REQUEST)
            return
        answer, lac, explicit, evidence = self._ledgers.last_confirmed(as_request(Kind.READ_LAC, ledger_id))
        if answer is Answer.UNKNOWN:
            # With a LAC in it, this would count as a response: it must not.
            self._refuse(request, Answer.ERROR)
        elif answer is not Answer.OK:
            self._refuse(request, Answer.NO_ENTRY if answer is Answer.NO_LEDGER else answer)
        else:
            fields: dict[str, Any] = {}
            if explicit:
                fields["lacBody"] = explicit
            if len(evidence):
                fields["lastEntryBody"] = bytes(evidence)
            # A LAC without an entry is Java's oddity: "EIO", and the client takes the LAC all the same. "No entry" says
            # that nothing is confirmed: a bookie that knows better, or may have lost what says so, does not say it.
            denies = lac == NO_ENTRY and not explicit and not self._ledgers.may_have_lost(ledger_id)
            alone = Answer.NO_ENTRY if denies else Answer.ERROR
            self._answer(request, 0 if len(evidence) else bookkeeper.v3_code(alone), **fields)

    # --- the rest ----------------------------------------------------------------------------------------------------

    def _force(self, request: pb.Request) -> None:
        ledger_id = request.forceLedgerRequest.ledgerId
        if ledger_id < 0:
            self._refuse(request, Answer.BAD_REQUEST)
            return
        self._ledgers.force(ledger_id, lambda answer: self._refuse(request, answer))

    def _info(self, request: pb.Request) -> None:
        asked = request.getBookieInfoRequest.requested
        disk = disk_facts(self._server.config.directory)
        if disk is None:
            self._refuse(request, Answer.ERROR)
            return
        fields = {}
        if asked & v3.TOTAL_DISK_CAPACITY:
            fields["totalDiskCapacity"] = disk["bytes"]
        if asked & v3.FREE_DISK_SPACE:
            fields["freeDiskSpace"] = disk["free_bytes"]
        self._answer(request, 0, **fields)

    def _list(self, request: pb.Request) -> None:
        ledger_id = request.getListOfEntriesOfLedgerRequest.ledgerId
        if ledger_id < 0 or self._ledgers.term(ledger_id):
            self._refuse(request, Answer.BAD_REQUEST)
            return
        if self._ledgers.is_pending_deletion(ledger_id):
            self._refuse(request, Answer.UNKNOWN)
            return
        held = [interval[:4] for interval in self._ledgers.good(ledger_id)]
        if not held:
            answer, _, _ = self._lookup.entry(ledger_id, 0)
            if answer is not Answer.NO_ENTRY:
                self._refuse(request, answer)
                return
        entries = bookkeeper.encode_entry_list(held)
        if len(entries) > self._server.config.frame_limits.bookkeeper - 256:
            self._refuse(request, Answer.TOO_BUSY)
        else:
            self._answer(request, 0, availabilityOfEntriesOfLedger=entries)

    def _auth(self, request: pb.Request) -> None:
        message = v3.response(request.header, 0)
        message.authResponse.authPluginName = bookkeeper.AUTH_DISABLED
        message.authResponse.payload = b""
        self._send([v3.frame_of(message)])
