"""A made-up older Quire, in a process of its own: today's code, which then runs a module or a script.

python tests/support/made_up.py fewer MODULE_OR_SCRIPT ARGUMENT...       speaks a version before too, and has no features
python tests/support/made_up.py unreleased MODULE_OR_SCRIPT ARGUMENT...  only knows the version before of every format
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from quire.core import version

if __name__ == "__main__":
    _, kind, what, *arguments = sys.argv
    if kind == "unreleased":
        version.FORMAT -= 1  # type: ignore[misc]  # before any format is read
    else:
        from quire.wire import native_hello

        native_hello.VERSION_MIN -= 1  # type: ignore[misc]
        native_hello.OFFERED = 0  # type: ignore[misc]
        native_hello.Hello.__init__.__defaults__ = (
            native_hello.VERSION_MIN,
            *native_hello.Hello.__init__.__defaults__[1:],  # type: ignore[index]
        )
    sys.argv = [what, *arguments]
    if what.endswith(".py"):
        sys.path[0] = str(Path(what).parent)
        runpy.run_path(what, run_name="__main__")
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)
