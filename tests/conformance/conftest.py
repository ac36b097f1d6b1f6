import pytest

from conformance.metadata_drivers import DRIVERS, EACH_DRIVER, clients


@pytest.fixture(params=EACH_DRIVER)
def driver(request, tmp_path):
    return DRIVERS[request.param](tmp_path)


@pytest.fixture
async def a(driver):
    """A client of the store."""
    async with clients(driver, 1) as (store,):
        yield store


@pytest.fixture
async def b(driver):
    """Another one."""
    async with clients(driver, 1) as (store,):
        yield store
