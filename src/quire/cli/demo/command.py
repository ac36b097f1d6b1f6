"""`quire demo`: the main job with one command."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

from quire.cli.console.options import JsonOption, option
from quire.cli.console.output import Output


def demo(
    source: Annotated[
        Path | None,
        option("--input", "Your own file or directory instead of the standard library's source files."),
    ] = None,
    directory: Annotated[
        Path | None,
        option("--dir", "Where everything will lie [default: quire/demo in the user's cache folder]."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the main job, step by step: real input into a log, servers killed meanwhile, nothing lost, a Spark table.

    Needs git, and a Java runtime for Spark.
    """
    from quire.cli.demo.narrator import Narrator
    from quire.cli.demo.story import tell
    from quire.env.private import user_folder

    narrator = Narrator(Output(as_json=as_json))
    place = directory or user_folder("XDG_CACHE_HOME", ".cache") / "demo"
    facts = tell(narrator, place.absolute(), source)
    quire = "quire" if shutil.which("quire") else str(Path(sys.executable).with_name("quire"))
    lines = [
        "",
        f"Done in {facts['seconds']:.1f} s. Nothing that was acknowledged is lost.",
        "",
        f"The table          {facts['table']}",
        f"Start the cluster  {quire} up --dir {facts['cluster_directory']}",
        f"Meanwhile, read    {quire} log read {facts['logs'][1]} --last 5 --cluster {facts['cluster']}",
    ]
    narrator.out.result(facts, *lines)
