"""Descriptors are shared out before there are too few; having none left is no damage; a crowd displaces itself."""

from __future__ import annotations

import errno
from itertools import product

import pytest

from quire.core.errors import MisuseError
from quire.env.descriptors import LEAST, OWN, ConnectionEntry, Shares, admit, is_shortage, share_out


@pytest.mark.parametrize("limit", [LEAST, 64, 100, 256, 1024, 20_000, 1 << 20])
def test_no_share_reaches_into_another(limit: int) -> None:
    shares = share_out(limit, 10_000, 128)
    assert OWN + shares.queue + shares.files + shares.connections <= limit
    assert 1 <= shares.newcomers <= shares.connections <= 10_000
    assert 1 <= shares.files <= 128
    assert shares.queue >= 1


def test_what_is_wished_for_is_not_exceeded() -> None:
    assert share_out(1 << 20, 7, 3) == Shares(connections=7, newcomers=1, files=3, queue=100)


def test_too_few_for_a_bookie() -> None:
    with pytest.raises(MisuseError, match="ulimit"):
        share_out(LEAST - 1, 10_000, 128)


def test_what_a_shortage_is() -> None:
    assert is_shortage(OSError(errno.EMFILE, "too many open files"))
    assert is_shortage(OSError(errno.ENFILE, "too many open files in system"))
    assert not is_shortage(OSError(errno.EIO, "the disk"))
    assert not is_shortage(None)
    assert not is_shortage(errno.EMFILE)


def test_who_gets_in() -> None:
    shares = Shares(connections=8, newcomers=2, files=1, queue=1)
    for connections, newcomers in product(range(9), range(3)):
        if newcomers > connections:
            continue
        entry = admit(shares, connections, newcomers)
        if connections < 8 and newcomers < 2:
            assert entry is ConnectionEntry.ADMITTED
        else:
            assert entry is (ConnectionEntry.DISPLACES if newcomers else ConnectionEntry.REFUSED)
