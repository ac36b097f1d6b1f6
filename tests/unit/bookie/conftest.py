from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unit.bookie.test_bookie_server import World, world


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[World]:
    """One bookie and a client of it."""
    async with world(tmp_path) as made:
        yield made
