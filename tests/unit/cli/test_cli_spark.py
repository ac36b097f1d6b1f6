"""`quire spark`: the list of jobs, and a doctor whose every line can be acted upon."""

import json

import pytest
from typer.testing import CliRunner

from quire.cli.main import app
from quire.spark import doctor
from quire.spark.doctor import Health


def run(*arguments):
    return CliRunner().invoke(app, ["spark", *arguments])


def test_jobs_are_listed_and_an_unknown_one_is_named():
    listed = run("run", "--json")
    assert {json.loads(line)["job"] for line in listed.stdout.splitlines()} >= {
        "to_parquet",
        "replay",
        "scrub",
    }
    refused = run("run", "compct")
    assert refused.exit_code == 2
    assert "There is no job 'compct'" in refused.output


def test_a_job_says_what_it_takes():
    shown = run("run", "scrub", "--help")
    assert shown.exit_code == 0
    assert "quire spark run scrub" in shown.stdout
    assert "--audit" in shown.stdout


def test_the_doctor_names_a_cluster_that_is_not_there_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    seen = run("doctor", "--json", "--cluster", f"sqlite:{tmp_path}/none.db")
    checks = {row["what"]: row for row in map(json.loads, seen.stdout.splitlines())}
    assert seen.exit_code == 1
    assert checks["cluster"]["health"] == "bad"
    assert checks["Python of the workers"]["health"] == "bad"
    assert "PYSPARK_PYTHON=" in checks["Python of the workers"]["remedy"]
    assert checks["format quire is found"]["health"] == "good"


def test_programs_that_end_without_a_word_are_named(tmp_path, monkeypatch):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", "false")
    checks = {check.what: check for check in doctor.examine()}
    assert (checks["java"].health, checks["java"].found) == (
        Health.ODD,
        f"{java} says nothing of its version",
    )
    python = checks["Python of the workers"]
    assert python.health is Health.BAD
    assert python.found.startswith("false: ")
    assert "returned non-zero exit status 1" in python.found


def test_a_module_that_hides_every_format_is_found(tmp_path, monkeypatch):
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    [check] = [each for each in doctor.examine() if each.what == "module pyspark_broken"]
    assert (check.health, "no licence" in check.found) == (Health.BAD, True)
    assert "quire.spark.register" in check.remedy


@pytest.mark.parametrize(
    ("settings", "odd"),
    [
        ({}, {"zone of timestamps"}),
        ({"spark.sql.python.filterPushdown.enabled": "false", "spark.sql.session.timeZone": "UTC"}, set()),
        (
            {
                "spark.sql.python.filterPushdown.enabled": "true",
                "spark.python.worker.reuse": "false",
                "spark.sql.session.timeZone": "UTC",
            },
            {"filters handed to sources", "workers used again"},
        ),
    ],
)
def test_settings_that_cost_something_are_odd(settings, odd):
    checks = list(doctor.examine_session(settings.get))
    assert {check.what for check in checks if check.health is Health.ODD} == odd
    assert all(check.remedy for check in checks if check.health is not Health.GOOD)
