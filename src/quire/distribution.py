"""The distribution that this program was installed from, and the one sentence about an extra that was not installed with it.

Where the packages of an extra are imported, `require` stands before. What it says works on this machine: the command names the
clone, the wheel's file or the repository that this installation came from, as installers record it in `direct_url.json`. It
must not import a package of an extra.

Source: docs/decisions/047-a-light-base.md.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from quire.core.errors import MissingExtraError, MisuseError
from quire.core.version import VERSION

NAME: Final = "quire-log"
TESTING: Final = "quire-log-testing"
"""What checks Quire, from the same repository: docs/decisions/033-one-room-for-testing.md."""
_TESTING_FOLDER: Final = "src/quire_testing"
_ORIGIN: Final = "direct_url.json"
_HERE: Final = Path(__file__).resolve().parent


class Extra(StrEnum):
    """The optional dependencies of `pyproject.toml` that code here asks for."""

    ARROW = "arrow"
    ZOOKEEPER = "zookeeper"
    ETCD = "etcd"
    SPARK = "spark"
    """What Spark's workers and drivers need besides Spark: where a platform brings its own."""
    SPARK_LOCAL = "spark-local"
    DELTA = "delta"
    ICEBERG = "iceberg"


_SPARK_MODULES: Final = ("numpy", "pyarrow", "prometheus_client")
MODULES: Final = {
    Extra.ARROW: ("pyarrow",),
    Extra.ZOOKEEPER: ("kazoo", "puresasl"),
    Extra.ETCD: ("grpc",),
    Extra.SPARK: _SPARK_MODULES,
    Extra.SPARK_LOCAL: (*_SPARK_MODULES, "pyspark"),
    Extra.DELTA: ("deltalake",),
    Extra.ICEBERG: ("pyiceberg",),
}
"""The modules that an extra's packages have."""


def require(extra: Extra, what: str) -> None:
    """Refuse to go on without an extra's packages.

    Args:
        extra: the extra; for `SPARK` without any pyspark the sentence names `SPARK_LOCAL`, which brings one.
        what: what needs it: the sentence's subject, in the singular.

    Raises:
        MissingExtraError: one of them is not installed.
    """
    absent = [module for module in MODULES[extra] if not _is_there(module)]
    if extra is Extra.SPARK and not _is_there("pyspark"):
        extra, absent = Extra.SPARK_LOCAL, [*absent, "pyspark"]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        raise MissingExtraError(
            f"{what} needs the extra '{extra}' ({', '.join(absent)} {verb} not installed): {install_command(extra)}",
            extra=str(extra),
        )


def testing_module(name: str, command: str) -> Any:
    """A module of `quire_testing`, loaded by its name: no import runs up.

    Args:
        name: the module's, below that package.
        command: what the user asked for, as on the command line.

    Raises:
        MisuseError: the package is not installed.
    """
    if not _is_there("quire_testing"):
        raise MisuseError(
            f"`{command}` is in the package {TESTING}, which is not installed: {install_testing_command()}"
        )
    return importlib.import_module(f"quire_testing.{name}")


def install_command(extra: Extra) -> str:
    """The command that installs an extra beside what is here."""
    found = _installed()
    clone = _clone()
    if clone is not None:
        editable = _origin(found).get("dir_info", {}).get("editable", False)
        return _pip(found, "-e " if editable else "", f"{_from_here(clone)}[{extra}]")
    return _pip(found, "", _requirement(found, NAME, f"[{extra}]"))


def install_testing_command() -> str:
    """The command that installs the distribution of `quire_testing` beside what is here."""
    found = _installed()
    clone = _clone()
    if clone is not None:
        return _pip(found, "", f"{_from_here(clone)}/{_TESTING_FOLDER}")
    return _pip(found, "", _requirement(found, TESTING, ""))


def _is_there(module: str) -> bool:
    return sys.modules.get(module) is not None or importlib.util.find_spec(module) is not None


def _installed() -> importlib.metadata.Distribution | None:
    """What an installer recorded of these files; of a clone, which may also hold what a build left, of its place."""
    for found in importlib.metadata.distributions(name=NAME):
        if found.read_text(_ORIGIN) if _clone() else Path(str(found.locate_file("quire"))).resolve() == _HERE:
            return found
    return None


def _clone() -> Path | None:
    """The clone that this file lies in; None for a file that was installed."""
    root = _HERE.parents[1]
    return root if _HERE.parent.name == "src" and (root / "pyproject.toml").is_file() else None


def _from_here(place: Path) -> str:
    return "." if place == Path.cwd() else str(place)


def _origin(found: importlib.metadata.Distribution | None) -> dict[str, Any]:
    """Where an installer got the distribution; empty for one that was installed by its name."""
    text = found.read_text(_ORIGIN) if found is not None else None
    origin: dict[str, Any] = json.loads(text) if text else {}
    return origin


def _requirement(found: importlib.metadata.Distribution | None, name: str, extra: str) -> str:
    """What to hand to pip so that it takes a distribution of ours from where this one came from."""
    origin = _origin(found)
    url = urlsplit(origin.get("url", ""))
    folder = f"#subdirectory={_TESTING_FOLDER}" if name == TESTING else ""
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"{name}{extra} @ {vcs['vcs']}+{url.geturl()}@{vcs['commit_id']}{folder}"
    wheel = f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    if "archive_info" in origin and url.scheme != "file":
        return f"{name}{extra} @ {url.geturl().rpartition('/')[0]}/{wheel}"
    if "url" in origin:
        path = Path(unquote(url.path))
        if "dir_info" in origin:
            return f"{_from_here(path)}/{_TESTING_FOLDER}" if folder else f"{_from_here(path)}{extra}"
        return f"{path.with_name(wheel)}{extra}" if path.with_name(wheel).is_file() else f"{wheel}{extra}"
    # By its name, from an index or a folder that has it; or, unpacked without an installer, from a wheel.
    return f"{wheel}{extra}" if found is None or found.read_text("INSTALLER") is None else f"{name}{extra}"


def _pip(found: importlib.metadata.Distribution | None, options: str, requirement: str) -> str:
    installer = (found.read_text("INSTALLER") or "").strip() if found is not None else ""
    return f"{'uv pip' if installer == 'uv' else 'pip'} install {options}{shlex.quote(requirement)}"
