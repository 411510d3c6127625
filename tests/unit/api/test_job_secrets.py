from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from keyscale.api.errors import SecretUnknownError, SettingInvalidError
from keyscale.api.job_secrets import JobSecrets
from keyscale.api.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

VARIABLES = {"KEYSCALE_JOB_SECRET_ORDERS": "of-a-variable", "KEYSCALE_JOB_SECRET_BILLS": "other"}


def test_a_job_gets_the_secrets_that_it_names_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "TOPIC").write_text("of-a-file\n")
    secrets = JobSecrets(VARIABLES, tmp_path)
    secrets.require(["ORDERS", "TOPIC"])
    assert secrets.variables_of(["ORDERS", "TOPIC"]) == {
        "KEYSCALE_JOB_SECRET_ORDERS": "of-a-variable",
        "KEYSCALE_JOB_SECRET_TOPIC": "of-a-file",
    }
    assert secrets.variables_of([]) == {}


def test_a_driver_gets_the_names_too_and_can_tell_a_secret_that_is_gone(tmp_path: Path) -> None:
    secrets = JobSecrets(VARIABLES, tmp_path)
    named = {"KEYSCALE_REVEALED_NAMES": "ORDERS,GONE"}
    assert secrets.environment_of(["ORDERS", "GONE"]) == {"KEYSCALE_JOB_SECRET_ORDERS": "of-a-variable", **named}
    assert secrets.environment_of(None) == VARIABLES, "a job that names none gets all, and misses none"


def test_a_changed_file_is_read_again_and_outranks_a_variable(tmp_path: Path) -> None:
    secrets = JobSecrets(VARIABLES, tmp_path)
    for value in ("first", "second"):
        (tmp_path / "ORDERS").write_text(value)
        assert secrets.variables_of(["ORDERS"]) == {"KEYSCALE_JOB_SECRET_ORDERS": value}


def test_a_job_of_a_version_that_named_no_secrets_gets_all(tmp_path: Path) -> None:
    (tmp_path / "TOPIC").write_text("of-a-file")
    assert len(JobSecrets(VARIABLES, tmp_path).variables_of(None)) == 3


@pytest.mark.parametrize("name", ["NONE", "../token", "/etc/passwd", ".hidden", ""])
def test_an_unknown_secret_is_refused_and_no_name_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "token").write_text("x")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / ".hidden").write_text("x")
    secrets = JobSecrets({}, tmp_path / "secrets")
    with pytest.raises(SecretUnknownError):
        secrets.require([name])
    assert secrets.variables_of([name]) == {}


def test_a_directory_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalidError, match="KEYSCALE_JOB_SECRETS_DIRECTORY"):
        Settings.from_environment({"KEYSCALE_JOB_SECRETS_DIRECTORY": str(tmp_path / "none")})
