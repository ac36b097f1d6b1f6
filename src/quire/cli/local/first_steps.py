"""What `quire up` prints below its bookies: which context the cluster is, commands to try; and what starts it again.

The cluster in the user's data directory becomes the context `local`. A cluster in another directory gets no name: tests
and scripts start many of them, and what commands mean must not depend on which of them came first.

Source: docs/command-line.md, "The cluster of `quire up`".
"""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

from quire.cli.console.named_clusters import (
    MEMBERS_FILE,
    METADATA_FILE,
    NamedClusters,
    uri_of,
    without_password,
)
from quire.cli.local.local_bookie import HOST
from quire.core.errors import QuireError
from quire.env.private import user_folder

if TYPE_CHECKING:
    from quire.cli.local.local_cluster import LocalCluster

LOCAL: Final = "local"
"""The context of the cluster in the user's data directory."""
COPIES: Final = 3
"""How many bookies the ledgers of a log have by default."""


def data_directory() -> Path:
    """Where the data of `quire up` lie without --dir."""
    return user_folder("XDG_DATA_HOME", ".local/share")


def starting_again(uri: str) -> str:
    """The command that starts a cluster of `quire up` none of whose bookies listens; "" for any other cluster."""
    scheme, _, path = uri.partition(":")
    directory = Path(path).parent
    try:
        facts = json.loads((directory / MEMBERS_FILE).read_text("utf-8"))
        ports = [int(bookie["port"]) for bookie in facts["bookies"]]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if scheme != "sqlite" or Path(path).name != METADATA_FILE or any(map(_is_listening, ports)):
        return ""
    is_default = directory.resolve() == data_directory().absolute().resolve()
    return "quire up" if is_default else f"quire up --dir {quote(str(directory))}"


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) != errno.ECONNREFUSED


def first_steps(local: LocalCluster) -> list[str]:
    """Name a cluster that serves, if it is the user's own, and say how to use it.

    A context that exists never gets another cluster, and where one is in use it stays in use.

    Args:
        local: the cluster.

    Returns:
        Lines of text, for people.
    """
    place = quote(local.uri if local.joined else str(local.directory))
    try:
        sentence, option = _standing(local, _with_local(local), place)
    except (QuireError, OSError) as error:  # the cluster serves all the same
        sentence, option = f"It has no name: {error}", place
    return [sentence, *_to_try(local, f" --cluster {option}" if option else "")]


def _standing(local: LocalCluster, known: NamedClusters, place: str) -> tuple[str, str]:
    """Which context the cluster is, in a sentence, and what --cluster must name; "": nothing need be named."""
    names = sorted(name for name, uri in known.clusters.items() if uri == local.uri)
    if not names:
        text = f"`quire context add NAME {place} --use` gives it a name and puts it in use."
        if _is_the_users(local):
            other = without_password(known.clusters[LOCAL])
            text = f"The context {LOCAL} names another cluster, {other}, and is left as it is. {text}"
        return text, place
    name = next((name for name in (known.current, LOCAL) if name in names), names[0])
    exported = os.environ.get("QUIRE_CLUSTER")
    if name != known.current:
        in_use = f"The context {known.current} is in use" if known.current else "No context is in use"
        return f"It is the context {name}. {in_use}: `quire context use {name}` puts this one in use.", name
    if exported and _uri(exported) != local.uri:
        why = "QUIRE_CLUSTER is set in this shell and comes first: `unset QUIRE_CLUSTER` ends that."
        return f"It is the context {name}. {why}", name
    return f"It is the context {name}, which is in use.", ""


def _is_the_users(local: LocalCluster) -> bool:
    """Whether it is the cluster in the user's data directory, and has its own metadata there."""
    return not local.joined and local.directory.resolve() == data_directory().absolute().resolve()


def _with_local(local: LocalCluster) -> NamedClusters:
    """The contexts, with `local` among them if this is that cluster and the name was free."""
    known = NamedClusters.load()
    if not _is_the_users(local) or known.clusters.get(LOCAL, local.uri) != local.uri:
        return known
    if LOCAL not in known.clusters or known.current is None:
        known.clusters[LOCAL] = local.uri
        known.current = known.current or LOCAL
        known.save()
    return known


def _uri(text: str) -> str:
    try:
        return uri_of(text)
    except QuireError:
        return text


def _to_try(local: LocalCluster, option: str) -> list[str]:
    count = len(local.bookies)
    few = not local.joined and count < COPIES  # such a cluster cannot hold a log with the default settings
    made = f"  quire log create greetings -E {count} -w {count} -a {count}{option}"
    return [
        "Try in another terminal:",
        *([made] if few else []),
        f"  echo hello | quire log append greetings{'' if few else ' --create'}{option}",
        f"  quire log read greetings{option}",
    ]
