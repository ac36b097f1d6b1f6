"""Certificates as an operator makes them: with the openssl command, signed by a CA of their own."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


def openssl(*arguments: str | Path, stdin: str = "") -> str:
    """What one openssl command prints."""
    done = subprocess.run(
        ["openssl", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, in PEM."""

    certificate: Path
    key: Path


class Authority:
    """A CA in a folder of its own.

    Attributes:
        ca: its certificate.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.name = name
        self.ca = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
            "-keyout", self._key, "-out", self.ca, "-subj", f"/CN=Quire test {name}",
        )  # fmt: skip

    def issue(
        self,
        name: str,
        hosts: str = "IP:127.0.0.1,DNS:localhost",
        *,
        days: int = 30,
        password: str = "",
        organizational_unit: str = "test",
        string_mask: str = "utf8only",
    ) -> Pair:
        """A certificate for these hosts, signed by this CA; with fewer than 0 days it has expired.

        Args:
            string_mask: as what the subject's texts are written; "default" makes Teletex of what is not ASCII.
        """
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        protection = ["-aes256", "-pass", f"pass:{password}"] if password else []
        openssl(
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            *protection,
            "-out",
            pair.key,
        )
        subject = f"/OU={organizational_unit}/CN={name}"
        passin = ["-passin", f"pass:{password}"] if password else []
        settings = self.folder / f"{name}.cnf"
        settings.write_text(f"[req]\ndistinguished_name = dn\nstring_mask = {string_mask}\n[dn]\n")
        openssl(
            "req", "-new", "-config", settings, "-key", pair.key, *passin, "-subj", subject, "-out", request
        )  # fmt: skip
        extensions.write_text(f"subjectAltName={hosts}\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl(
            "x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial",
            "-days", str(days), "-extfile", extensions, "-out", pair.certificate,
        )  # fmt: skip
        return pair

    def pkcs12(self, pair: Pair, password: str) -> Path:
        """The pair and its CA as Java's key store."""
        path = pair.certificate.with_suffix(".p12")
        openssl(
            "pkcs12", "-export", "-in", pair.certificate, "-inkey", pair.key, "-certfile", self.ca,
            "-name", "bookkeeper", "-out", path, "-passout", f"pass:{password}",
        )  # fmt: skip
        return path


def replace(pair: Pair, by: Pair) -> None:
    """Put another certificate and key in the place of these, as a renewal does."""
    for old, new in ((pair.key, by.key), (pair.certificate, by.certificate)):
        beside = old.with_suffix(".new")
        shutil.copyfile(new, beside)
        beside.replace(old)


def quoted(text: str) -> str:
    """As it stands between quotation marks."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def jaas(folder: Path, *, users: dict[str, str] | None = None, user: tuple[str, str] | None = None) -> Path:
    """A JAAS file with a bookie's users, or with a client's one."""
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    sections = []
    if users is not None:
        options = "\n".join(f'    user_{name}="{quoted(password)}"' for name, password in users.items())
        sections.append(f"Bookie {{\n    {module}\n{options};\n}};\n")
    if user is not None:
        options = f'    username="{user[0]}"\n    password="{quoted(user[1])}"'
        sections.append(f"BookKeeper {{\n    {module}\n{options};\n}};\n")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "jaas.conf"
    path.write_text("\n".join(sections))
    return path
