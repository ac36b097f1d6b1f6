"""What the demo needs besides Quire, looked for before it begins: a story that stops in its seventh step convinces no one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from quire.core.errors import MissingExtraError, RefusedError
from quire.distribution import Extra, require

JAVA_MIN: Final = 17
FREE_BYTES_MIN: Final = 2 * 1024**3
_VERSION: Final = re.compile(r'version "(\d+)')


class MissingError(RefusedError):
    """Something that the demo needs is not on this machine; the text says what, and how to get it."""

    code = "missing"


def check(directory: Path) -> None:
    """Look for everything.

    Args:
        directory: where the demo will write.

    Raises:
        MissingError: naming all that is missing at once.
    """
    found = [why for why in (_git(), _java(), _spark(), _room(directory)) if why]
    if found:
        raise MissingError("The demo cannot begin here:\n" + "\n".join(f"  - {why}" for why in found))


def _git() -> str | None:
    if shutil.which("git"):
        return None
    return "git is not installed: its history of a repository is what the log is compared with (`apt-get install git`)"


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    install = (
        "`apt-get install openjdk-17-jre-headless`, or set JAVA_HOME; `make demo` looks for it in more places"
    )
    if java is None:
        return f"Java is not on the PATH, and Spark needs {JAVA_MIN} or 21: {install}"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{java} does not run ({error.strerror}): {install}"
    version = _VERSION.search(done.stderr + done.stdout)
    if version is None or int(version[1]) < JAVA_MIN:
        which = f"is version {version[1]}" if version else "does not tell its version"
        return f"{java} {which}, and Spark needs {JAVA_MIN} or 21: {install}"
    return None


def _spark() -> str | None:
    try:
        require(Extra.SPARK_LOCAL, "its Spark part")
    except MissingExtraError as error:
        return error.message
    return None


def _room(directory: Path) -> str | None:
    there = next(one for one in (directory, *directory.parents) if one.exists())
    free = shutil.disk_usage(there).free
    if free >= FREE_BYTES_MIN:
        return None
    return f"{there} has {free / 1024**3:.1f} GiB free, and the demo writes up to 2 GiB: choose another --dir"
