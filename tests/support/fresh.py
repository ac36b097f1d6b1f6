"""Environments with nothing but a wheel of ours and what it needs, as somebody has who installed it a minute ago."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
END_S = 60.0
PINS = re.compile(r"^[a-z0-9.-]+==[^ ;\\]+", re.MULTILINE)


def python_or_skip(version):
    """An interpreter of a version; the test is skipped, loudly, where there is none that runs."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for path in (*pyenv.glob(f"versions/{version}.*/bin/{name}"), shutil.which(name), f"/usr/bin/{name}"):
        with contextlib.suppress(OSError, TypeError):
            if subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
                return path
    return pytest.skip(f"WARNING: there is no {name} on this machine: the wheel is not tried on it")


def with_uv(line):
    """Run a line with the project's uv, which takes packages from where the project does."""
    command = [str(ROOT / "tools" / "environment"), "uv", "bash", "-c", line]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Fresh:
    """An environment of its own, with an empty home.

    Args:
        directory: where it is made.
        python: its interpreter.
        packages: what is installed: wheels, names.
        pinned: in the versions of requirements/dev.txt; else the newest ones.
    """

    def __init__(self, directory, python, *packages, pinned=True):
        self.venv = directory / "venv"
        self.home = directory / "home"
        self.home.mkdir()
        if pinned:
            pins = directory / "pins.txt"
            pins.write_text("\n".join(PINS.findall((ROOT / "requirements" / "dev.txt").read_text())))
            packages = ("--constraint", str(pins), *packages)
        made = with_uv(f"uv venv --quiet --python {python} {self.venv}")
        assert made.returncode == 0, made.stderr
        # Bytecode as pip leaves it.
        install = f"uv pip install --python {self.venv}/bin/python --compile-bytecode {shlex.join(map(str, packages))}"
        done = with_uv(install)
        if done.returncode and "Failed to fetch" in done.stderr:
            done = with_uv(f"{install} --offline")  # what is in the cache may do
            if done.returncode:
                pytest.skip(
                    f"WARNING: no fresh environment without a package index: {done.stderr.strip()[-500:]}"
                )
        assert done.returncode == 0, done.stderr
        self.env = {
            "HOME": str(self.home),
            "PATH": os.pathsep.join([str(self.venv / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]),
            "VIRTUAL_ENV": str(self.venv),
            "LANG": "C.UTF-8",
        }

    def disk_bytes(self):
        """What the packages take on disk, in whole blocks."""
        packages = next(self.venv.glob("lib/python3*/site-packages"))
        return sum(path.stat().st_blocks * 512 for path in packages.rglob("*") if not path.is_symlink())

    def shell(self, line, *, seconds=END_S, **env):
        """Run a line as a person types it."""
        return self._run(["bash", "-c", line], seconds, env)

    def python(self, code, *arguments, **env):
        """Run a program."""
        return self._run([str(self.venv / "bin" / "python"), "-c", code, *arguments], END_S, env)

    def _run(self, command, seconds, env):
        return subprocess.run(
            command,
            cwd=self.home,
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    @contextlib.contextmanager
    def terminal(self, line, last_line):
        """Run a line in a terminal of its own, from the line that says that it is ready up to a Ctrl-C that ends it cleanly."""
        running = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self.home,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = []
            for text in running.stdout:
                said.append(text.rstrip("\n"))
                if last_line in text:
                    break
            assert running.poll() is None, "\n".join(said)
            yield said
        finally:
            running.send_signal(signal.SIGINT)
            rest, _ = running.communicate(timeout=END_S)
        assert (running.returncode, rest) == (0, "Stopped cleanly.\n")


def first_block(page):
    """The commands of a page's first console block after its installation, each with the lines that it shows."""
    text = page.partition("pip install")[2]
    block = re.search(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = []
    for line in block[1].splitlines() if block else ():
        if line.startswith("$ "):
            found.append((line[2:].partition("  #")[0].strip(), []))
        elif found and line:
            found[-1][1].append(line)
    return found
