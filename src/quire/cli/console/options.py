"""The options that many commands share, and what their values mean."""

from __future__ import annotations

import contextlib
import os
import re
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from quire.cli.console.named_clusters import NamedClusters, uri_of
from quire.core.errors import MisuseError, NoClusterError
from quire.env.private import read_secret, secret_of_environment
from quire.wire.addresses import split_address

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


def option(words: str, text: str, **more: Any) -> Any:
    """An option of a command.

    Args:
        words: its names, and what stands for its value, as its help has them: `--format -f FORM`.
        text: its help.
        more: as of `typer.Option`.
    """
    names = [word for word in words.split() if word.startswith("-")]
    value = next((word for word in words.split() if word not in names), None)
    return typer.Option(*names, metavar=value, help=text, **more)


def argument(words: str, text: str, **more: Any) -> Any:
    """An argument of a command, as `option`."""
    return typer.Argument(metavar=words, help=text, **more)


ClusterOption = Annotated[
    str | None,
    option(
        "--cluster CLUSTER",
        "The cluster: sqlite:PATH (what `quire up` prints), zk://HOST:2181/ledgers, a directory of `quire up`, or the "
        "name of a context [default: QUIRE_CLUSTER, else the context in use].",
    ),
]
JsonOption = Annotated[bool, option("--json", "Print one JSON object per line.")]
SecurityOption = Annotated[
    Path | None,
    option(
        "--security FILE", "What bookies ask of clients: a file with [tls] and [sasl] (docs/security.md)."
    ),
]
FrameOption = Annotated[
    int | None,
    option(
        "--frame-bytes-max BYTES",
        "The longest frame of V2 and V3, 32 KiB less than our own protocol's; bookies and clients should have the "
        "same [default: 5253120, and 8 MiB for our own].",
        envvar="QUIRE_FRAME_BYTES_MAX",
    ),
]
SegmentOption = Annotated[
    int | None,
    option(
        "--segment-bytes BYTES",
        "The size of the files in which bookies keep entries; a bookie needs four of them, and an entry must fit one "
        "[default: 67108864, and less on a disk below 2 GiB].",
        envvar="QUIRE_SEGMENT_BYTES",
    ),
]
CollectOption = Annotated[
    float,
    option(
        "--collect-every SECONDS",
        "How often deleted ledgers are looked for; 0: never.",
        envvar="QUIRE_COLLECT_EVERY",
        min=0,
    ),
]
TombstonesOption = Annotated[
    float,
    option(
        "--tombstones-for SECONDS",
        "How long a ledger that was deleted refuses late adds.",
        envvar="QUIRE_TOMBSTONES_FOR",
        min=0,
    ),
]
TIMEOUT_MAX = 86_400.0
"""The longest time-out, in seconds."""
ENSEMBLE = option("--ensemble-size -E", "How many bookies share the entries.")
WRITE = option("--write-quorum -w", "How many bookies get each entry.")
ACK = option("--ack-quorum -a", "How many must have it before it counts.")
MinPresentOption = Annotated[
    int | None,
    option(
        "--min-present N",
        "Bookies of a new ledger that must be there, Qa to E; places of the others are absent slots, which name "
        "bookies that are read-only or away [default: Qa].",
    ),
]


@dataclass(frozen=True)
class Quorums:
    """The quorums of a new ledger, or of a new log's ledgers, as `create` takes them."""

    ensemble_size: Annotated[int, ENSEMBLE] = 3
    write_quorum: Annotated[int, WRITE] = 3
    ack_quorum: Annotated[int, ACK] = 2
    min_present: MinPresentOption = None


ForceOption = Annotated[
    bool, option("--force", "Even if its bookies are lost and a writer cannot be stopped.")
]
GUARANTEE = "write-quorum"
GuaranteeOption = Annotated[
    str | None,
    option(
        f"--guarantee {GUARANTEE}",
        "Every entry of a closed ledger, and of every fragment but the last, is on its whole write quorum.",
    ),
]


def password_of(file: str) -> str:
    """A ledger's password: from a file, from the terminal, or from the environment; "" where there is none.

    Args:
        file: a file with one line, the password, which only its owner can read; "-" asks on the terminal; ""
            takes QUIRE_PASSWORD.

    Raises:
        MisuseError: the file cannot be read or can be read by others, or there is no terminal to ask on.
    """
    if not file:
        return secret_of_environment("QUIRE_PASSWORD") or ""
    if file != "-":
        return read_secret(Path(file), "password")
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        text = (
            "--password-file - asks on the terminal, and there is none: name a file that only you can read, or set "
            "QUIRE_PASSWORD."
        )
        raise MisuseError(text) from error
    import getpass

    return getpass.getpass("Password of the ledger: ")


NOT_ON_COMMAND_LINES = (
    "--password is refused: every user of this machine can read command lines. Give --password-file FILE with a file that "
    "only you can read (one line, the password), --password-file - to be asked, or set QUIRE_PASSWORD."
)
PasswordOption = Annotated[
    str,
    option(
        "--password-file FILE",
        "A file with one line, the password of the ledger (of a log: of its ledgers), readable by you alone; - asks "
        "for it. Without it QUIRE_PASSWORD counts; no password by default.",
        callback=password_of,
    ),
]


FRAMES: ContextVar[int | None] = ContextVar("FRAMES", default=None)
"""The limit of frames of the command that runs; None: the default one."""
MEANT: ContextVar[str] = ContextVar("MEANT", default="")
"""The URI of the cluster of the command that runs; "" before it was looked up."""


def named_cluster(cluster: str | None) -> str | None:
    """The URI of the cluster that is named: by the option, by the environment, or by the context in use.

    Args:
        cluster: the option's value.

    Raises:
        NoClusterError: the text that names it is neither a URI, nor a context, nor a path.
    """
    if named := cluster or os.environ.get("QUIRE_CLUSTER"):
        return uri_of(named)
    known = NamedClusters.load()
    return known.clusters[known.current] if known.current is not None else None


def cluster_uri(cluster: str | None) -> str:
    """The cluster that is meant, or a sentence about how to name one.

    Raises:
        NoClusterError: none is named, or what names it cannot be.
    """
    if uri := named_cluster(cluster):
        MEANT.set(uri)
        return uri
    text = (
        "No cluster is named. `quire up` starts one on this machine, for which commands need no name; for another give "
        "--cluster URI or set QUIRE_CLUSTER, or put a context in use (`quire context add NAME CLUSTER --use`)."
    )
    raise NoClusterError(text)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run one command's coroutine to its end, on uvloop where it is installed.

    Ctrl-C cancels the coroutine, so that its context managers close what they opened, and then comes out as
    KeyboardInterrupt.
    """
    import asyncio

    factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(work)
    finally:
        work.close()  # Ctrl-C may have come before it began


def host_and_port(listen: str, option: str = "--listen") -> tuple[str, int]:
    """Split `host:port`; a port alone means the loopback address, where one listens.

    Args:
        listen: the text.
        option: whose value it is.

    Raises:
        MisuseError: it is neither.
    """
    if option == "--listen" and re.fullmatch("[0-9]{1,5}", listen):
        listen = f"127.0.0.1:{listen}"
    address = split_address(listen)
    if address is None or address[1] is None:
        brackets = " An IPv6 address stands in brackets, as in [::1]:3181." if listen.count(":") > 1 else ""
        raise MisuseError(f"{option} takes host:port with a port of 0..65535, not {listen!r}.{brackets}")
    return address[0], address[1]
