"""JAAS files: where BookKeeper's programs read users and passwords from. Ours read the same files.

    Bookie {
        org.apache.zookeeper.server.auth.DigestLoginModule required
        user_writer="its password"
        user_reader="another";
    };
    BookKeeper {
        org.apache.zookeeper.server.auth.DigestLoginModule required
        username="writer"
        password="its password";
    };

A bookie reads its section's `user_NAME` options, a client `username` and `password` of its own.

Source: `docs/security.md`; Java platform API, `javax.security.auth.login.Configuration`: the format.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from quire.core.errors import MisuseError
from quire.env.private import warn_if_others_may_read
from quire.net.security.sasl import Users

BOOKIE_SECTION: Final = "Bookie"
CLIENT_SECTION: Final = "BookKeeper"
_USER: Final = "user_"
_TOKEN: Final = re.compile(
    r'\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<mark>[{};=])|(?P<word>[^\s{};="]+)',
    re.DOTALL,
)


def users_of(path: Path, section: str, allowed: str) -> Users:
    """The users of a bookie's section.

    Raises:
        MisuseError: no such file, section or user, or the pattern is none.
    """
    options = options_of(path, section)
    passwords = {name[len(_USER) :]: value for name, value in options.items() if name.startswith(_USER)}
    if not passwords:
        msg = f'{path}: section {section} names no user: write user_NAME="password" into it'
        raise MisuseError(msg, path=str(path))
    try:
        return Users(passwords, re.compile(allowed))
    except re.error as error:
        msg = f"allowed_ids is not a valid regular expression: {allowed!r}: {error}"
        raise MisuseError(msg) from error


def user_of(path: Path, section: str) -> tuple[str, str]:
    """The name and the password of a client's section.

    Raises:
        MisuseError: no such file or section, or it lacks one of the two.
    """
    options = options_of(path, section)
    if not options.get("username") or "password" not in options:
        msg = f'{path}: section {section} must have username="…" and password="…"'
        raise MisuseError(msg, path=str(path))
    return options["username"], options["password"]


def options_of(path: Path, section: str) -> dict[str, str]:
    """All options of one section's login modules.

    Raises:
        MisuseError: the file cannot be read, is no JAAS file, or has no such section.
    """
    try:
        tokens = _tokens(path.read_text(encoding="utf-8"))
        warn_if_others_may_read(path, "passwords")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        msg = f"the JAAS file {path} cannot be read: {reason}"
        raise MisuseError(msg, path=str(path)) from error
    found: list[str] = []
    while tokens:
        name, opening = tokens.pop(0), tokens.pop(0) if tokens else ""
        options: dict[str, str] = {}
        while tokens and tokens[0] != "}":
            word = tokens.pop(0)
            if tokens and tokens[0] == "=" and len(tokens) > 1:
                options[word] = tokens[1]
                del tokens[:2]
        if opening != "{" or tokens[:2] != ["}", ";"]:
            msg = f"the JAAS file {path} cannot be read: section {name} does not look like `{name} {{ … }};`"
            raise MisuseError(msg, path=str(path))
        if name == section:
            return options
        del tokens[:2]
        found.append(name)
    msg = f"the JAAS file {path} has no section {section}, it has: {', '.join(found) or 'none'}"
    raise MisuseError(msg, path=str(path))


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            line = text.count("\n", 0, at) + 1
            msg = f"line {line} has a quotation mark that nothing ends"
            raise ValueError(msg)
        at = found.end()
        if found["text"] is not None:
            tokens.append(re.sub(r"\\(.)", r"\1", found["text"]))
        elif found.lastgroup is not None:
            tokens.append(found[found.lastgroup])
    return tokens
