"""The user's own configuration is none of the tests' business."""

import pytest


@pytest.fixture(autouse=True)
def no_contexts_of_the_user(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))
