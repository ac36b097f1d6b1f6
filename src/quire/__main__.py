"""The process of the command line: `quire`, and `python -m quire`.

The commands are imported once the signals are in place, so that Ctrl-C in the first moments ends in a sentence as well.
"""

from __future__ import annotations

import sys

from quire.cli.console.process import end_on_sigterm, keep_exit_code


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        end_on_sigterm()
        from quire.cli import main as commands

        commands.main()
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    finally:
        keep_exit_code()


if __name__ == "__main__":
    main()
