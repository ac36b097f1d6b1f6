"""An error's code is its class's name, and programs compare codes: none may change unnoticed."""

import importlib

import pytest

from quire.core.errors import NoSuchLedgerError, QuireError

MODULES = (
    "quire.core.errors",
    "quire.log.archive",
    "quire.log.cursors",
    "quire.metadata.store",
    "quire.spark.as_of",
    "quire.spark.extents",
    "quire.spark.options",
    "quire.wire.batch_format",
    "quire_testing.history.events",
)
CODES = [
    "absent",
    "already_exists",
    "archive",
    "archive_lost",
    "archived",
    "authentication",
    "checkpoint_went_back",
    "corrupt_metadata",
    "cursor_holds",
    "cursor_taken",
    "damaged_mark",
    "damaged_segment",
    "descriptor_shortage",
    "digest_mismatch",
    "directory_in_use",
    "directory_lost",
    "disk_full",
    "election_unavailable",
    "identity_replaced",
    "invalid_quorum",
    "key_missing",
    "ledger_closed",
    "ledger_fenced",
    "ledger_id_reused",
    "list_changed",
    "log_led",
    "malformed_batch",
    "malformed_frame",
    "malformed_history",
    "metadata_conflict",
    "metadata_unknown",
    "missing_extra",
    "misuse",
    "no_cluster",
    "no_such_entry",
    "no_such_ledger",
    "no_such_log",
    "no_such_stream",
    "not_enough_bookies",
    "not_leader",
    "not_writing",
    "outcome_unknown",
    "past_end",
    "peer",
    "quorum_lost",
    "read_failed",
    "read_unavailable",
    "recovery_inconclusive",
    "recreated",
    "refused",
    "spark_use",
    "staged_ledger_gone",
    "storage",
    "store_away",
    "store_busy",
    "stream_closed",
    "term_superseded",
    "transaction_reset",
    "transaction_rows",
    "trimmed",
    "version_conflict",
    "window_full",
    "wrong_directory",
    "wrong_password",
]


def kinds(kind):
    for each in kind.__subclasses__():
        yield each
        yield from kinds(each)


def test_codes_are_what_they_were():
    for module in MODULES:
        importlib.import_module(module)
    found = [each.code for each in set(kinds(QuireError)) if each.__module__ in MODULES]
    assert sorted(found) == CODES


@pytest.mark.parametrize(("kind", "code"), [(QuireError, "error"), (NoSuchLedgerError, "no_such_ledger")])
def test_an_instance_has_its_class_code(kind, code):
    assert kind("why").code == code


def test_a_code_that_is_given_stays():
    class OddError(QuireError):
        """One whose code says more than its name."""

        code = "odd_indeed"

    class OddestError(OddError):
        """One below it has its own."""

    assert (OddError.code, OddestError.code) == ("odd_indeed", "oddest")
