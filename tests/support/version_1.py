"""The native protocol as a connection of version 1 speaks it."""

from __future__ import annotations

import inspect
from typing import Any

from quire.wire import native, native_bodies, native_hello, native_info

MODULES = (native, native_bodies, native_hello, native_info)
LATER_NAMES = {"decode_intervals": "decode_held", "encode_intervals": "encode_held"}
"""What read and wrote LIST_ENTRIES in one piece does so in pages, of which version 1 has one."""


def codec(name: str) -> Any:
    """A name of the codecs, wherever it lives."""
    found = [getattr(module, name) for module in MODULES if hasattr(module, name)]
    return found[0] if found else codec(LATER_NAMES[name])


def call(name: str, *args: Any, **options: Any) -> Any:
    """Call a function of the codecs for version 1."""
    function = codec(name)
    known = inspect.signature(function).parameters
    if "version" in known:
        options["version"] = 1
    if function.__name__ == "decode_held":
        page, _ = function(*args, 0, **options)
        return page
    return function(*args, **options)
