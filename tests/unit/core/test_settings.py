"""What settings may be: nothing beyond both ends, and the same words in every room."""

from dataclasses import fields

import pytest

from quire.bookie.config import BookieConfig
from quire.client.config import ClientConfig
from quire.core.errors import MisuseError
from quire.core.settings import Choice, doubled
from quire.log.config import LogConfig, LogGuarantee
from quire.storage.config import StorageConfig


@pytest.mark.parametrize("config", [BookieConfig, ClientConfig, LogConfig, LogGuarantee, StorageConfig])
def test_a_setting_that_cannot_be_is_named_with_what_it_may_be(config):
    required = {"directory": "here"} if config is BookieConfig else {}
    for each in fields(config):
        allowed = each.metadata.get("allowed", Choice())
        wrong = () if isinstance(allowed, Choice) else (allowed.low - 1, allowed.high + 1, "5", True)
        for value in wrong:
            with pytest.raises(MisuseError, match=f"`{config.__name__}.{each.name}` must be .*, got"):
                config(**required, **{each.name: value})


def test_a_pause_doubles_up_to_its_end():
    assert [doubled(5, 30, times) for times in (0, 1, 2, 3, 1000)] == [5, 10, 20, 30, 30]
