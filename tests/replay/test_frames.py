"""What replays read from frames that their own clients do not send: those write one ledger."""

from __future__ import annotations

from quire.core.answers import Answer
from quire.wire import native
from quire.wire.bundles import BundlePart, encode_parts
from quire_testing.replay.frames import answer_of, request_of
from support.hostile_worlds import GOOD
from support.native_peer import add, bundle_of


def test_a_bundle_names_ledger_and_entries_of_each_row_and_a_response_the_rows_that_it_answers() -> None:
    sent = request_of(bundle_of([add(7), add(3, ledger=GOOD), add(9)], number=5))
    assert (sent.number, sent.text) == (
        5, f"bundle of ledger 1 add 7..7 lac=6, ledger {GOOD.ledger_id} add 3..3 lac=2, ledger 1 add 9..9 lac=8"
    )  # fmt: skip
    late = answer_of(encode_parts(5, [BundlePart(1, 1, Answer.FENCED)], 0), sent)
    early = answer_of(encode_parts(5, [BundlePart(0, 1, Answer.OK), BundlePart(2, 1, Answer.OK)], 0), sent)
    assert early.text == "OK to ledger 1 add 7..7 lac=6, OK to ledger 1 add 9..9 lac=8"
    assert (late.text, late.reply[2]) == (
        f"FENCED to ledger {GOOD.ledger_id} add 3..3 lac=2",
        (None, Answer.FENCED, None),
    )
    refused = b"".join(native.encode_answer(native.Kind.ADD_BUNDLE, Answer.BAD_REQUEST, 5))
    assert answer_of(refused, sent).text == "BAD_REQUEST to bundle"
