"""Clusters by name, kept in the user's configuration, and what `--cluster` may be besides a URI.

The file is `quire/contexts.json` in the user's configuration folder, readable by its owner alone because a URI may hold
a password: an object with `clusters`, name to URI, and `current`, the name in use or null.

Source: XDG Base Directory Specification, `XDG_CONFIG_HOME`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quire.core.errors import CorruptMetadataError, MisuseError, NoClusterError
from quire.env.private import FOLDER_MODE, open_private, user_folder
from quire.env.real import expanded

METADATA_FILE: Final = "metadata.db"
"""The metadata store in a directory of `quire up`."""

MEMBERS_FILE: Final = "bookies.json"
"""What such a directory says of its bookies, and of the cluster that they joined."""

_URI: Final = re.compile(r"[a-z][a-z0-9+-]+:", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PASSWORD: Final = re.compile(r"(//[^/@:]*:)[^/@]*@")


@dataclass(slots=True)
class NamedClusters:
    """The content of the file that names clusters.

    Attributes:
        clusters: the URI of each name.
        current: the name in use; None: none is.
    """

    clusters: dict[str, str] = field(default_factory=dict)
    current: str | None = None

    @classmethod
    def load(cls) -> NamedClusters:
        """What the file says; nothing where there is none.

        Raises:
            CorruptMetadataError: it is not what this program writes.
            OSError: it cannot be read.
        """
        path = contexts_file()
        try:
            facts = json.loads(path.read_text("utf-8"))
            clusters = {str(name): str(uri) for name, uri in facts["clusters"].items()}
            current = facts.get("current")
            current = current if current in clusters else None
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"{path} is damaged ({error}): correct it, or delete it and add the contexts again."
            raise CorruptMetadataError(text, path=str(path)) from error
        return cls(clusters, current)

    def save(self) -> None:
        """Write the file.

        Raises:
            OSError: it cannot be written.
        """
        path = contexts_file()
        path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        write_json(path, {"clusters": self.clusters, "current": self.current})

    def needed(self, name: str) -> str:
        """The URI of a name.

        Raises:
            MisuseError: there is no such name.
        """
        if name not in self.clusters:
            known = (
                ", ".join(sorted(self.clusters)) or "there is none yet; `quire context add NAME URI` adds one"
            )
            raise MisuseError(f"There is no context {name!r}; the contexts: {known}.")
        return self.clusters[name]


def write_json(path: Path, facts: dict[str, object]) -> None:
    """Replace a file that its owner alone reads; a reader sees the old one or the new one."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open_private(new, "w", encoding="utf-8") as stream:
        json.dump(facts, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(path)


def contexts_file() -> Path:
    """Where the names are kept."""
    return user_folder("XDG_CONFIG_HOME", ".config") / "contexts.json"


def check_name(name: str) -> str:
    """The name of a context, if it can be one.

    Raises:
        MisuseError: it is empty, too long, or has other characters than names have.
    """
    if not _NAME.fullmatch(name):
        raise MisuseError(f"{name!r} cannot name a context: use up to 64 letters, digits and . - _ only.")
    return name


def uri_of(text: str) -> str:
    """The URI of the cluster that a user means.

    Args:
        text: a URI, the name of a context, a directory of `quire up`, or a metadata file. What has a slash, or begins
            with a dot or a tilde, is a path; a name comes before a path.

    Raises:
        NoClusterError: it is none of these.
    """
    if _URI.match(text):
        return text
    if "/" not in text and not text.startswith((".", "~")):
        if uri := NamedClusters.load().clusters.get(text):
            return uri
        if not Path(text).exists():
            raise NoClusterError(
                f"{text!r} names no cluster: give a URI (sqlite:PATH, zk://HOST:2181/ledgers, etcd://HOST:2379/ledgers), a "
                "directory of `quire up`, or a name that `quire context list` shows."
            )
    return _uri_of_path(expanded(text).absolute())


def _uri_of_path(path: Path) -> str:
    if path.is_file():
        return f"sqlite:{path}"
    if (path / METADATA_FILE).is_file():
        return f"sqlite:{path / METADATA_FILE}"
    try:
        joined = json.loads((path / MEMBERS_FILE).read_text("utf-8")).get("cluster")
    except (OSError, ValueError, AttributeError):
        joined = None
    if joined:
        return str(joined)
    what = f"holds no {METADATA_FILE}" if path.is_dir() else "does not exist"
    raise NoClusterError(
        f"{path} {what}: name a directory of `quire up`, or the metadata file of a cluster.", path=str(path)
    )


def lasting(uri: str) -> str:
    """A URI that means the same in every directory, to be kept: the path of a SQLite file is absolute in it."""
    scheme, _, rest = uri.partition(":")
    path = rest.removeprefix("//")
    if scheme != "sqlite" or not path or path.startswith(("/", "~")):
        return uri
    return f"sqlite:{Path(path).absolute()}"


def without_password(uri: str) -> str:
    """A URI as it may be shown."""
    return _PASSWORD.sub(r"\1***@", uri)
