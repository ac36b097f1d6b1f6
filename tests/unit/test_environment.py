"""The set-up script, run as the Makefile runs it, with programs of our making on the PATH."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "environment"
SECONDS = 30


@pytest.fixture
def programs(tmp_path):
    """A directory for the PATH with what the script itself needs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "dirname", "mkdir", "sed", "head", "id", "touch", "rm", "grep"):
        (folder / name).symlink_to(shutil.which(name))
    return folder


def add_program(folder, name, text):
    program = folder / name
    program.unlink(missing_ok=True)
    program.write_text(f"#!{shutil.which('bash')}\n{text}\n")
    program.chmod(0o755)
    return program


def add_java(folder, version):
    return add_program(folder, "java", f"echo 'openjdk version \"{version}\" 2025-01-01' >&2")


def run(folder, *args, script=SCRIPT, **env):
    return subprocess.run(
        [shutil.which("bash"), str(script), *args],
        env={"PATH": str(folder), "HOME": str(folder.parent), **env},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_java_on_the_path_is_found(programs):
    java = add_java(programs, "21.0.2")
    assert run(programs, "find-java").stdout.strip() == str(java)
    assert run(programs, "java").returncode == 0


def test_java_home_comes_first(programs, tmp_path):
    add_java(programs, "21.0.2")
    (tmp_path / "home/bin").mkdir(parents=True)
    java = add_java(tmp_path / "home/bin", "17.0.9")
    assert run(programs, "find-java", JAVA_HOME=str(tmp_path / "home")).stdout.strip() == str(java)


def test_java_is_installed_after_a_word_of_where_and_how_much(programs, tmp_path):
    script = tmp_path / "tools" / "environment"
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text().replace(" /usr/lib/jvm/*/bin/java", ""))
    add_program(programs, "id", "echo 0")
    java = "echo 'openjdk version \\\"17\\\"' >&2"
    new = f"{programs}/java"
    add_program(
        programs, "apt-get", f'echo "#!$BASH" >{new}; echo "{java}" >>{new}; {shutil.which("chmod")} +x {new}'
    )
    done = run(programs, "java", script=script)
    assert done.returncode == 0, done.stderr
    assert "openjdk-17-jre-headless" in done.stderr
    assert "190 MB below /usr/lib/jvm" in done.stderr


def test_packages_are_installed_after_a_word_of_where_and_how_much(programs, tmp_path):
    script = tmp_path / "tools" / "environment"
    (tmp_path / "requirements").mkdir()
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text())
    (tmp_path / "requirements/runtime.txt").write_text("one==1 --hash\n    # via two\ntwo==2 --hash\n")
    done = run(programs, "install", "requirements/runtime.txt", "stamp", script=script)
    assert f"installing 2 packages of requirements/runtime.txt into {tmp_path}/.venv: 0.8 GB" in done.stderr
    assert "could not install" in done.stderr.partition("downloaded")[2], "only then it is tried"


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "16.0.1"])
def test_an_old_java_is_passed_over(programs, version):
    java = add_java(programs, version)
    assert str(java) not in run(programs, "find-java").stdout


def test_a_home_that_cannot_be_written_does_not_stop_it(programs):
    add_java(programs, "17.0.9")
    assert run(programs, "java", HOME="").returncode == 0
    assert run(programs, "java", HOME="/proc/nowhere").returncode == 0


def test_no_function_hides_a_program_that_the_script_calls():
    text = SCRIPT.read_text()
    functions = set(re.findall(r"^(\w+)\(\) \{", text, re.M))
    assert (
        functions & {"java", "python", "pip", "uv", "venv", "install", "lock", "make", "sed", "id", "test"}
        == set()
    )


def test_without_arguments_it_explains_itself(programs):
    done = run(programs)
    assert done.returncode == 2
    assert "environment java" in done.stderr


def test_a_python_that_was_named_is_taken(programs):
    assert run(programs, "find-python", PYTHON=sys.executable).stdout.strip() == sys.executable


def test_without_a_python_a_sentence_says_what_to_install(programs, tmp_path):
    script = tmp_path / "tools" / "environment"
    script.parent.mkdir()
    script.write_text(SCRIPT.read_text().replace(" /usr/bin/python3 /usr/bin/python3.11", ""))
    done = subprocess.run(
        [shutil.which("bash"), str(script), "find-python"],
        env={"PATH": str(programs), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "apt-get install python3 python3-venv" in done.stderr
