"""The command line and the environment that a driver is started with."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.errors import SettingInvalidError
from keyscale.api.launching.driver_command import (
    SPARK_SECRET_VARIABLE,
    driver_command,
    driver_environment,
    loader_command,
    loader_environment,
    master_of,
    share_of_cluster,
    spark_home,
    stays_on_loopback,
)
from keyscale.api.libraries.library_cache import PlacedLibraries
from keyscale.api.settings import Settings
from keyscale.db.models import Attempt, Job, Revision
from keyscale.installation import DRIVER_PROGRAM, IMPORT_PATH
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from keyscale.jobs.protocol.spark_settings import LOCAL_SETTINGS, REQUIRED_SETTINGS

if TYPE_CHECKING:
    from pathlib import Path


PLAIN = Revision(spec={"artifact_id": "program"})


def test_a_driver_gets_no_secret_but_its_own(tmp_path: Path) -> None:
    settings = Settings.from_environment(
        {
            "KEYSCALE_HOME": str(tmp_path),
            "KEYSCALE_DATABASE_URL": "postgresql://u:secret@db/x",
            "AWS_SECRET_ACCESS_KEY": "for-the-store",
        }
    )
    host = {"PATH": "/bin", "KEYSCALE_DATABASE_URL": "postgresql://u:secret@db/x", "KEYSCALE_TOKEN": "t", "OTHER": "x"}
    environment = driver_environment(settings, "own", tmp_path / "work", host, {})
    assert {"own", "for-the-store"} <= set(environment.values())
    assert not any("secret@" in value for value in environment.values())
    assert not {"KEYSCALE_DATABASE_URL", "KEYSCALE_TOKEN", "OTHER", "KEYSCALE_HOME"} & set(environment)


def test_a_driver_gets_the_java_options_of_all_drivers(tmp_path: Path) -> None:
    settings = Settings.from_environment({"KEYSCALE_HOME": str(tmp_path)})
    environment = driver_environment(settings, "own", tmp_path / "work", {"SPARK_SUBMIT_OPTS": "-Dx=1"}, {})
    assert environment["SPARK_SUBMIT_OPTS"] == "-Dx=1"


def test_a_driver_logs_in_the_form_of_the_control_plane(tmp_path: Path) -> None:
    key = "spark.log.structuredLogging.enabled"
    for chosen, structured in (("json", "true"), ("text", None)):
        host = {"KEYSCALE_HOME": str(tmp_path), "KEYSCALE_LOG_FORMAT": chosen}
        settings, work = Settings.from_environment(host), tmp_path / "work"
        assert driver_environment(settings, "own", work, host, {})["KEYSCALE_LOG_FORMAT"] == chosen
        attempt = Attempt(job_id="job", number=3, parallelism=2)
        command = driver_command(settings, Job(id="job", name="counts"), PLAIN, attempt, work)
        assert options_of(command).get(key) == structured


def test_a_run_has_a_directory_of_its_own_for_temporary_files(tmp_path: Path) -> None:
    settings = Settings.from_environment({"KEYSCALE_HOME": str(tmp_path)})
    work = tmp_path / 'a "home" \\ with spaces' / "runs" / "job" / "7" / "work"
    environments = (
        driver_environment(settings, "own", work, {"TMPDIR": "/tmp"}, {}),  # noqa: S108 - of all processes of the host
        loader_environment(work, {"TMPDIR": "/tmp"}, {}),  # noqa: S108 - as above
    )
    assert [environment["TMPDIR"] for environment in environments] == [str(work.parent / "tmp")] * 2
    driver = driver_command(settings, Job(name="x"), PLAIN, Attempt(number=7, parallelism=3), work)
    for command in (driver, loader_command(settings, {}, work)):
        [options] = [part for part in command if part.startswith("spark.driver.extraJavaOptions=")]
        assert shlex.split(options)[-1] == f"-Djava.io.tmpdir={work.parent / 'tmp'}"


def test_with_a_role_of_the_store_a_driver_does_not_get_the_control_planes_keys(tmp_path: Path) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "the-key", "AWS_SECRET_ACCESS_KEY": "hidden", "AWS_PROFILE": "ours"}
    plain = {"AWS_DEFAULT_REGION": "eu-west-1", "KEYSCALE_S3_ENDPOINT": "http://s3.example"}
    role = {"KEYSCALE_STORE_URL": "s3://bucket/prefix", "KEYSCALE_STORE_ROLE": "arn:aws:iam::1:role/jobs"}
    settings = Settings.from_environment({"KEYSCALE_HOME": str(tmp_path), **keys, **plain, **role})
    assert (settings.store_token_endpoint or "").startswith("http://s3.")
    environment = driver_environment(settings, "own", tmp_path / "work", keys, {})
    assert not {"the-key", "hidden", "ours"} & set(environment.values())
    assert plain.items() <= environment.items()
    assert environment["AWS_CONFIG_FILE"].startswith(str(tmp_path / "work"))
    elsewhere = driver_environment(settings, "own", tmp_path / "work", keys, {}, store_url="file:///store")
    assert "hidden" in elsewhere.values(), "a job of before, with another store"


@pytest.mark.parametrize(
    "given",
    [{"KEYSCALE_STORE_URL": "file:///store"}, {"KEYSCALE_STORE_URL": "s3://b", "KEYSCALE_SPARK_MASTER": "spark://h:1"}],
)
def test_a_role_that_could_not_keep_jobs_apart_is_refused(tmp_path: Path, given: dict[str, str]) -> None:
    role = {"KEYSCALE_STORE_ROLE": "arn:aws:iam::1:role/jobs", "KEYSCALE_HOME": str(tmp_path)}
    with pytest.raises(SettingInvalidError, match="KEYSCALE_STORE_ROLE"):
        Settings.from_environment({**role, **given})


def test_a_driver_gets_the_secrets_that_its_job_names_and_no_others(tmp_path: Path) -> None:
    orders, bills = f"{JOB_SECRET_PREFIX}ORDERS", f"{JOB_SECRET_PREFIX}BILLS"
    settings = Settings.from_environment({"KEYSCALE_HOME": str(tmp_path), orders: "hidden", bills: "elsewhere"})
    secrets = settings.job_secrets.variables_of(["ORDERS"])
    environment = driver_environment(
        settings, "own", tmp_path / "work", {orders: "hidden", bills: "elsewhere"}, secrets
    )
    assert environment[orders] == "hidden"
    assert "elsewhere" not in environment.values()
    assert "hidden" not in repr(settings)


def test_a_driver_can_import_no_package_of_ours_but_keyscale(tmp_path: Path) -> None:
    environment = driver_environment(Settings(home=tmp_path), "own", tmp_path / "work", os.environ, {})
    taken = ("api", "db", "deploy", "jobs", "state", "src", "tests", "bench", "main", "control", "attempt")
    script = f"import importlib.util as u; print(*(name for name in {('keyscale', *taken)} if u.find_spec(name)))"
    program = tmp_path / "program.py"  # beside it, as beside the driver's own, there are modules of any name
    program.write_text(script)
    (tmp_path / "attempt.py").touch()
    run = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["keyscale"]


def test_a_job_cannot_override_the_settings_that_guarantees_depend_on(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    wanted = Revision(
        spec={
            "artifact_id": "program",
            "rescale_mode": "STANDBY",
            "spark_conf": {"spark.speculation": "true", "spark.driver.memory": "3g"},
        }
    )
    command = driver_command(settings, Job(name="x"), wanted, Attempt(number=1, parallelism=3), tmp_path)
    assert "spark.speculation=false" in command
    assert "spark.driver.memory=3g" in command
    assert command[command.index("--master") + 1] == "local[4,4]"
    assert not any("token" in part.lower() for part in command)


@pytest.mark.parametrize(
    ("master", "wanted", "subtasks"),
    [
        ("local", {}, 8),
        ("local", {"parallelism": 6}, 12),
        ("local", {"parallelism_limit": 4}, 4),
        ("local", {"parallelism_limit": 2}, 3),  # the job runs in any case
        ("local", {"max_parallelism": 5}, 5),
        ("local", {"rescale_mode": "STANDBY"}, 3),
        ("spark://master:7077", {}, 3),
        ("spark://master:7077", {"parallelism_limit": 6}, 6),
    ],
)
def test_a_driver_that_rescales_live_has_cores_to_spare(
    tmp_path: Path, master: str, wanted: dict[str, Any], subtasks: int
) -> None:
    settings = Settings(home=tmp_path, spark_master=master)
    given = {"artifact_id": "program", "parallelism": 3, "max_parallelism": 128, "rescale_mode": "LIVE", **wanted}
    parallelism = given["parallelism"]
    attempt = Attempt(number=1, parallelism=parallelism)
    command = driver_command(settings, Job(name="x"), Revision(spec=given), attempt, tmp_path)
    has = f"local[{subtasks + 1},4]" if master == "local" else f"spark.cores.max={subtasks}"
    assert has in command
    splits = f"spark.sql.leafNodeDefaultParallelism={parallelism + 1}"
    assert (splits in command) is (subtasks > parallelism), "files are split as for the present parallelism"


def test_a_cluster_is_used_as_it_is_named(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, spark_master="spark://master:7077")
    assert master_of(settings, 3) == "spark://master:7077"
    assert "SPARK_LOCAL_IP" not in driver_environment(settings, "t", tmp_path, {}, {})
    command = driver_command(settings, Job(name="x"), PLAIN, Attempt(number=1, parallelism=3), tmp_path)
    assert not any(part.startswith("spark.driver.bindAddress") for part in command)


@pytest.mark.parametrize("master", ["local", "spark://127.0.0.1:7077", "spark://localhost:7077,[::1]:7078"])
def test_a_driver_whose_spark_is_on_this_host_listens_on_loopback_only(tmp_path: Path, master: str) -> None:
    settings = Settings(home=tmp_path, spark_master=master)
    command = driver_command(settings, Job(name="x"), PLAIN, Attempt(number=1, parallelism=3), tmp_path)
    assert {"spark.driver.bindAddress=127.0.0.1", "spark.driver.host=127.0.0.1"} <= set(command)
    assert driver_environment(settings, "t", tmp_path, {}, {})["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_attempts_of_a_job_share_their_local_state_and_nothing_else(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    runs = [driver_environment(settings, "t", tmp_path / "job" / number / "work", {}, {}) for number in ("1", "2")]
    assert {run["KEYSCALE_LOCAL_STATE_DIR"] for run in runs} == {str(tmp_path / "job" / "state")}
    assert len({run["KEYSCALE_WORK_DIR"] for run in runs}) == 2


@pytest.mark.parametrize("master", ["spark://master:7077", "spark://127.0.0.1:7077,other:7077", "yarn"])
def test_a_driver_on_a_cluster_of_other_hosts_does_not_stay_on_loopback(master: str) -> None:
    assert not stays_on_loopback(master)


def test_a_driver_takes_one_core_per_subtask_of_a_cluster_unless_the_job_says_otherwise(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, spark_master="spark://master:7077")
    for conf, cores in (({}, 3), ({"spark.cores.max": "8"}, 8)):
        command = driver_command(
            settings,
            Job(name="x"),
            Revision(spec={"artifact_id": "program", "spark_conf": conf}),
            Attempt(number=1, parallelism=3),
            tmp_path,
        )
        assert f"spark.cores.max={cores}" in command


def options_of(command: list[str]) -> dict[str, str]:
    """The Spark settings of a command line."""
    values = (command[place + 1] for place, part in enumerate(command) if part == "--conf")
    return dict(value.split("=", 1) for value in values)


def test_a_driver_has_exactly_this_environment(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, host="cp.example", port=80, spark_master="spark://master:7077")
    environment = driver_environment(
        settings, "own", tmp_path / "job" / "1", {"TZ": "UTC", "PATH": "/bin", "X": "y"}, {"SECRET": "s"}
    )
    assert environment == {
        "PATH": "/bin",
        "TZ": "UTC",
        "SECRET": "s",
        **settings.store_environment,
        "KEYSCALE_ATTEMPT_TOKEN": "own",
        "KEYSCALE_CONTROL_URL": "http://cp.example:80",
        "KEYSCALE_LOCAL_STATE_DIR": str(tmp_path / "state"),
        "KEYSCALE_WORK_DIR": str(tmp_path / "job" / "1"),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(IMPORT_PATH),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "SPARK_HOME": str(spark_home()),
        "TMPDIR": str(tmp_path / "job" / "tmp"),
    }
    assert driver_environment(settings, "own", tmp_path / "job" / "1", {}, {})["PATH"] == os.defpath


def test_an_attempts_command_names_its_job_its_folders_and_the_driver(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, spark_master="spark://master:7077", driver_memory="700m")
    command = driver_command(settings, Job(name="bills"), PLAIN, Attempt(number=7, parallelism=3), tmp_path)
    assert command[:3] == [str(spark_home() / "bin" / "spark-submit"), "--master", "spark://master:7077"]
    assert command[-1] == str(DRIVER_PROGRAM)
    options = options_of(command)
    assert list(options) == sorted(options)
    assert {
        "spark.app.name": "keyscale-bills-7",
        "spark.driver.memory": "700m",
        "spark.local.dir": str(tmp_path / "spark"),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.cores.max": "3",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "10s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        **REQUIRED_SETTINGS,
    }.items() <= options.items()
    assert not LOCAL_SETTINGS.keys() & options.keys()
    local = options_of(
        driver_command(Settings(home=tmp_path), Job(name="x"), PLAIN, Attempt(number=1, parallelism=1), tmp_path)
    )
    assert LOCAL_SETTINGS.items() <= local.items()
    assert not share_of_cluster(1).keys() & local.keys()


def test_sparks_processes_accept_only_each_other_by_a_secret_that_no_command_line_shows(tmp_path: Path) -> None:
    job, wanted, attempt = Job(name="x"), PLAIN, Attempt(number=1, parallelism=3)
    assert "spark.authenticate=true" in driver_command(Settings(home=tmp_path), job, wanted, attempt, tmp_path)
    cluster = Settings(home=tmp_path, spark_master="spark://master:7077", spark_secret="of-the-cluster")  # noqa: S106
    command = driver_command(cluster, job, wanted, attempt, tmp_path)
    assert {"spark.authenticate=true", "spark.network.crypto.enabled=true"} <= set(command)
    assert not any("of-the-cluster" in part for part in command)
    assert driver_environment(cluster, "t", tmp_path, {}, {})[SPARK_SECRET_VARIABLE] == cluster.spark_secret
    without = Settings(home=tmp_path, spark_master="spark://master:7077")
    assert "spark.authenticate=true" not in driver_command(without, job, wanted, attempt, tmp_path)


def placed(tmp_path: Path) -> PlacedLibraries:
    return PlacedLibraries(
        python_path=(tmp_path / "a" / "site", tmp_path / "b" / "site"),
        archives=(tmp_path / "a" / "site.zip", tmp_path / "b" / "site.zip"),
        jars=(tmp_path / "x.jar", tmp_path / "y.jar"),
        sha256s=("aa", "bb", "cc"),
    )


def test_a_local_driver_imports_libraries_after_keyscale_and_ships_nothing(tmp_path: Path) -> None:
    settings, libraries = Settings(home=tmp_path), placed(tmp_path)
    environment = driver_environment(settings, "own", tmp_path / "work", {}, {}, libraries=libraries)
    assert environment["PYTHONPATH"].split(":") == [str(IMPORT_PATH), f"{tmp_path}/a/site", f"{tmp_path}/b/site"]
    assert environment["KEYSCALE_LIBRARIES"] == "aa,bb,cc"
    assert "KEYSCALE_EXECUTOR_PYTHONPATH" not in environment
    command = driver_command(
        settings, Job(name="x"), PLAIN, Attempt(number=1, parallelism=1), tmp_path, libraries=libraries
    )
    assert f"spark.jars={tmp_path}/x.jar,{tmp_path}/y.jar" in command
    assert not any(part.startswith("spark.archives") for part in command)


def test_executors_of_a_cluster_get_archives_and_find_what_is_in_them(tmp_path: Path) -> None:
    settings, libraries = Settings(home=tmp_path, spark_master="spark://master:7077"), placed(tmp_path)
    command = driver_command(
        settings, Job(name="x"), PLAIN, Attempt(number=1, parallelism=1), tmp_path, libraries=libraries
    )
    [archives] = [part.partition("=")[2] for part in command if part.startswith("spark.archives=")]
    names = [archive.partition("#")[2] for archive in archives.split(",")]
    environment = driver_environment(settings, "own", tmp_path / "work", {}, {}, libraries=libraries)
    assert environment["KEYSCALE_EXECUTOR_PYTHONPATH"].split(":") == names
    assert [archive.partition("#")[0] for archive in archives.split(",")] == [str(a) for a in libraries.archives]


def test_a_job_without_libraries_is_started_as_before(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, spark_master="spark://master:7077")
    command = driver_command(settings, Job(name="x"), PLAIN, Attempt(number=1, parallelism=1), tmp_path)
    assert not any(part.startswith(("spark.jars", "spark.archives")) for part in command)
    environment = driver_environment(settings, "own", tmp_path / "work", {}, {})
    assert not any("LIBRARIES" in name or "EXECUTOR" in name for name in environment)
