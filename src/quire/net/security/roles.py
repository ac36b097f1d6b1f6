"""The role that a client's certificate names in its subject, in the way of BookKeeper's `BookieAuthZFactory`.

An OU is a list of fields, `0:ROLE[,ROLE …];1:CLUSTER`. Field 0 holds roles, and the first of them is the certificate's.

Source: docs/security.md, "Roles"; BookKeeper source, `CertUtils` and `BookieAuthZFactory`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

Subject: TypeAlias = Sequence[Sequence[tuple[str, str]]]
"""As `ssl.SSLSocket.getpeercert` gives it: names made of attributes, in the order of the certificate."""

_UNIT: Final = "organizationalUnitName"
_FIELD: Final = re.compile(r"([0-9]+):(.*)")
_ROLES: Final = "0"
_SHORT: Final = {
    _UNIT: "OU",
    "commonName": "CN",
    "organizationName": "O",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "domainComponent": "DC",
}
_SHOWN_CHARACTERS: Final = 200


def role_of(subject: Subject) -> str:
    """The role that a certificate names; empty if it names none.

    Only the first OU counts, and of a field that is there twice the last. An OU that shares its name with other
    attributes (`OU=… + CN=…`) is not read: which of them Java takes depends on their order.
    """
    unit = next((name[0][1] for name in subject if len(name) == 1 and name[0][0] == _UNIT), "")
    matches = (_FIELD.fullmatch(part) for part in unit.split(";"))
    found = {match[1]: match[2].strip() for match in matches if match}
    return found.get(_ROLES, "").split(",")[0].strip()


def written(subject: Subject) -> str:
    """A subject for a message, in one line of at most 200 characters, without anything that a terminal would obey."""
    text = ", ".join(
        "+".join(f"{_SHORT.get(kind, kind)}={value}" for kind, value in name) for name in subject
    )
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "…"
