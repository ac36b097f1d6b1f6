"""What the library's messages say at a shell: calls of Python become commands, settings become options.

A message of the library names a setting in backticks (`min_present`, `ClientConfig.frame_bytes_max`), and advises a call as
asyncio has it (`await log.create()`). `quire.blocking` leaves the `await` out; this file has the shell's words.
"""

from __future__ import annotations

import re
from typing import Final

OPTIONS: Final = {
    "advertise": "--advertise",
    "ensemble_size": "--ensemble-size",
    "entry_bytes_max": "--frame-bytes-max",
    "force": "--force",
    "frame_bytes_max": "--frame-bytes-max",
    "host": "--listen",
    "min_present": "--min-present",
    "password": "--password-file",
    "port": "--listen",
}
"""The option of a setting."""
COMMANDS: Final = {
    "log.create()": "quire log create {log}",
    "log.remove_cursor(name)": "quire log cursors {log} --remove {cursor}",
}
"""The command that does what a call does, with what the error is about."""
_SETTING: Final = re.compile(r"`(?:[A-Z]\w+\.)?([a-z_]+)`")
_CALL: Final = re.compile(r"`await ([^`]+)`")


def for_command_line(message: str, ids: dict[str, object]) -> str:
    """A message of the library in the words of the shell.

    Args:
        message: as a caller in Python reads it.
        ids: what it is about.
    """

    def option(found: re.Match[str]) -> str:
        return OPTIONS.get(found[1], found[0])

    def command(found: re.Match[str]) -> str:
        line = COMMANDS.get(found[1])
        return found[0] if line is None else f"`{line.format(**{'log': 'LOG', 'cursor': 'CURSOR'} | ids)}`"

    return _SETTING.sub(option, _CALL.sub(command, message))
