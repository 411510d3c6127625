"""Which runs a spare can take: all that is fixed once a JVM runs must be equal."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from keyscale.api.launching.driver_command import driver_command, driver_environment
from keyscale.api.launching.driver_start import DriverStart
from keyscale.api.launching.isolation import JobUser
from keyscale.api.libraries.library_cache import PlacedLibraries
from keyscale.api.settings import Settings
from keyscale.db.models import Attempt, Job, Revision
from keyscale.jobs.protocol.redaction import JOB_SECRET_PREFIX
from keyscale.jobs.protocol.spare import SPARE_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

SECRET = {f"{JOB_SECRET_PREFIX}KEY": "hidden"}


def start_of(
    home: Path,
    job: str = "orders",
    number: int = 1,
    *,
    parallelism: int = 2,
    secrets: dict[str, str] | None = None,
    user: JobUser | None = None,
    libraries: PlacedLibraries | None = None,
    **spec: Any,
) -> DriverStart:
    settings = Settings(home=home, store_url="file:///store")
    directory = settings.runs_directory / job / str(number)
    given, work = libraries or PlacedLibraries(), directory / "work"
    revision = Revision(spec={"artifact_id": "program", **spec})
    attempt = Attempt(number=number, parallelism=parallelism)
    command = driver_command(settings, Job(name=job), revision, attempt, work, libraries=given)
    variables = driver_environment(
        settings, f"token-{job}-{number}", work, os.environ, secrets or {}, user=user, libraries=given
    )
    return DriverStart(directory, command, {**variables, "KEYSCALE_ATTEMPT": f"{job}:{number}"})


def test_jobs_without_settings_share_spares_whatever_their_names_tokens_secrets_and_parallelism(tmp_path: Path) -> None:
    first = start_of(tmp_path)
    assert first.pattern is not None
    assert start_of(tmp_path, "bills", 7, parallelism=3, secrets=SECRET).pattern == first.pattern


@pytest.mark.parametrize(
    "other",
    [
        {"parallelism": 5},  # more slots
        {"spark_conf": {"spark.driver.memory": "2g"}},
        {"spark_conf": {"spark.sql.shuffle.partitions": "9"}},
        {"user": JobUser(50_001, 50_001)},
        {"libraries": "modules"},
        {"libraries": "jars"},
    ],
    ids=str,
)
def test_a_spare_with_another_jvm_user_or_library_does_not_fit(tmp_path: Path, other: dict[str, Any]) -> None:
    brought = {
        "modules": PlacedLibraries(python_path=(tmp_path / "site",), sha256s=("a",)),
        "jars": PlacedLibraries(jars=(tmp_path / "a.jar",), sha256s=("b",)),
    }
    given = {name: brought[value] if name == "libraries" else value for name, value in other.items()}
    assert start_of(tmp_path, **given).pattern != start_of(tmp_path).pattern
    assert start_of(tmp_path, "bills", 9, **given).pattern == start_of(tmp_path, **given).pattern


def test_a_job_with_jars_and_secrets_needs_a_driver_of_its_own(tmp_path: Path) -> None:
    jars = PlacedLibraries(jars=(tmp_path / "a.jar",), sha256s=("b",))
    assert start_of(tmp_path, libraries=jars, secrets=SECRET).pattern is None


def test_a_spare_is_started_without_anything_of_a_job(tmp_path: Path) -> None:
    run = start_of(tmp_path, secrets=SECRET)
    assert run.pattern is not None
    spare = run.pattern.of_spare(tmp_path / "spares" / "a")
    texts = [*spare.command, *spare.variables.values()]
    assert not [text for text in texts if "orders" in text or "hidden" in text or "\0" in text]
    assert spare.variables[SPARE_VARIABLE] == "1"
    assert spare.variables["KEYSCALE_WORK_DIR"] == f"{tmp_path}/spares/a/work"
    assert f"spark.local.dir={tmp_path}/spares/a/work/spark" in spare.command


def test_a_run_in_a_spare_has_the_spares_directories_and_the_jobs_state(tmp_path: Path) -> None:
    run = start_of(tmp_path, secrets={f"{JOB_SECRET_PREFIX}KEY": f"{tmp_path}/runs/orders/1/x"})
    moved = run.in_spare(tmp_path / "spares" / "a")
    assert moved == {"KEYSCALE_WORK_DIR": f"{tmp_path}/spares/a/work", "TMPDIR": f"{tmp_path}/spares/a/tmp"}
    assert run.variables["KEYSCALE_LOCAL_STATE_DIR"] == f"{tmp_path}/runs/orders/state"


def test_a_pattern_names_the_user_of_its_job(tmp_path: Path) -> None:
    owned, plain = start_of(tmp_path, user=JobUser(50_001, 50_002)).pattern, start_of(tmp_path).pattern
    assert owned is not None
    assert plain is not None
    assert (owned.user, plain.user) == ((50_001, 50_002), None)


def test_a_directory_that_a_setting_writes_otherwise_is_not_shared(tmp_path: Path) -> None:
    quoted = start_of(tmp_path / 'a "home"')
    other = replace(quoted, directory=quoted.directory.with_name("2"))
    assert quoted.pattern != other.pattern
