from __future__ import annotations

import hashlib
import sys
import zipfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from keyscale.jobs.operators.failures import origin_of
from keyscale.jobs.protocol.messages import LibraryFile
from keyscale.jobs.runtime.control.channel import FileControl
from keyscale.jobs.runtime.errors import (
    ArtifactCorruptError,
    ArtifactUnsupportedError,
    AttemptOverError,
    ControlUnreachableError,
    JobScriptError,
    LibrariesMissingError,
)
from keyscale.jobs.runtime.preparation import artifact as artifact_module
from keyscale.jobs.runtime.preparation.artifact import LocalArtifact, require_libraries
from keyscale.jobs.spark_internals.function_copies import worker_copy

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from keyscale.jobs.runtime.control.channel import ControlChannel


@pytest.fixture
def session() -> SparkSession:
    """The one method of a session that an artifact uses: it gives a zip to the executors."""
    return SimpleNamespace(sparkContext=SimpleNamespace(addPyFile=lambda _path: None))  # type: ignore[return-value]  # see above


def script(tmp_path: Path, text: str) -> LocalArtifact:
    path = tmp_path / "artifact.py"
    path.write_text(text)
    return LocalArtifact(path)


def archive(tmp_path: Path, files: dict[str, str]) -> LocalArtifact:
    path = tmp_path / "artifact.zip"
    with zipfile.ZipFile(path, "w") as target:
        for name, text in files.items():
            target.writestr(name, text)
    return LocalArtifact(path)


def test_an_artifact_is_fetched_although_the_control_plane_is_away_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifact_module, "_RETRY_SECONDS", 0)
    answers: list[bytes | Exception] = [ControlUnreachableError("timed out"), ControlUnreachableError("503"), b"pass"]

    def fetch(target: Path) -> None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        target.write_bytes(answer)

    channel = cast("ControlChannel", SimpleNamespace(fetch_artifact=fetch))
    fetched = LocalArtifact.fetch(channel, "job.py", hashlib.sha256(b"pass").hexdigest(), tmp_path)
    assert (fetched.path.read_bytes(), answers) == (b"pass", [])


def test_an_attempt_that_is_over_fetches_no_artifact(tmp_path: Path) -> None:
    def fetch(_: Path) -> None:
        raise AttemptOverError("the attempt is over")

    with pytest.raises(AttemptOverError):
        LocalArtifact.fetch(cast("ControlChannel", SimpleNamespace(fetch_artifact=fetch)), "job.py", "", tmp_path)


def test_a_script_runs_as_main_and_its_functions_travel_by_value(tmp_path: Path, session: SparkSession) -> None:
    script(tmp_path, "FACTOR = 3\ndef triple(n):\n    return FACTOR * n\nassert __name__ == '__main__'\n").run(session)
    copy = worker_copy(sys.modules["__main__"].triple)
    sys.modules["__main__"] = sys.modules[__name__]  # as on an executor, which has never seen the script
    assert copy(4) == 12


def test_a_zip_runs_its_main_with_its_modules_importable(tmp_path: Path, session: SparkSession) -> None:
    files = {
        "main.py": "import shipped_with_job\nVALUE = shipped_with_job.VALUE\n",
        "shipped_with_job.py": "VALUE = 7\n",
    }
    archive(tmp_path, files).run(session)
    assert sys.modules["__main__"].VALUE == 7


def test_a_script_of_version_0_1_is_told_the_new_import(tmp_path: Path, session: SparkSession) -> None:
    artifact = script(tmp_path, "raise ModuleNotFoundError('No module named jobs', name='jobs')\n")
    with pytest.raises(JobScriptError, match="imported from `keyscale`"):
        artifact.run(session)


def test_a_script_that_raises_shows_its_own_lines(tmp_path: Path, session: SparkSession) -> None:
    artifact = script(tmp_path, "def start():\n    raise KeyError('input')\n\nstart()\n")
    with pytest.raises(JobScriptError, match="raised KeyError: 'input'") as caught:
        artifact.run(session)
    shown = str(origin_of(caught.value).user_traceback)
    assert "line 4, in <module>" in shown
    assert shown.endswith("KeyError: 'input'")
    assert "jobs/runtime" not in shown


def test_a_script_that_cannot_be_compiled_is_the_users_error(tmp_path: Path, session: SparkSession) -> None:
    artifact = script(tmp_path, "def broken(:\n")
    with pytest.raises(JobScriptError, match="SyntaxError") as caught:
        artifact.run(session)
    assert f'File "{artifact.path}", line 1' in str(origin_of(caught.value).user_traceback)


@pytest.mark.parametrize("leaving", ["raise SystemExit(3)", "import sys; sys.exit('no input')"])
def test_a_script_that_exits_with_failure_has_failed(tmp_path: Path, session: SparkSession, leaving: str) -> None:
    with pytest.raises(JobScriptError):
        script(tmp_path, leaving).run(session)


def test_a_script_may_exit_with_success(tmp_path: Path, session: SparkSession) -> None:
    script(tmp_path, "raise SystemExit(0)").run(session)


def test_a_zip_without_main_is_refused(tmp_path: Path, session: SparkSession) -> None:
    with pytest.raises(ArtifactUnsupportedError, match=r"main\.py"):
        archive(tmp_path, {"other.py": ""}).run(session)


def test_a_file_that_is_no_zip_is_refused(tmp_path: Path, session: SparkSession) -> None:
    (tmp_path / "artifact.zip").write_bytes(b"not a zip")
    with pytest.raises(ArtifactUnsupportedError):
        LocalArtifact(tmp_path / "artifact.zip").run(session)


def test_a_fetched_artifact_is_verified(tmp_path: Path) -> None:
    (tmp_path / "uploaded.py").write_text("pass")
    control = FileControl(tmp_path / "job.json", tmp_path / "uploaded.py")
    right = hashlib.sha256(b"pass").hexdigest()
    fetched = LocalArtifact.fetch(control, "uploaded.py", right, tmp_path).path
    assert (fetched.name, fetched.read_text()) == ("uploaded.py", "pass")
    assert LocalArtifact.fetch(control, "../../uploaded.py", right, tmp_path).path == fetched
    with pytest.raises(ArtifactCorruptError):
        LocalArtifact.fetch(control, "uploaded.py", "0" * 64, tmp_path)
    with pytest.raises(ArtifactUnsupportedError):
        LocalArtifact.fetch(control, "uploaded.exe", right, tmp_path)


def test_a_driver_that_was_started_without_a_library_of_its_job_refuses_to_run_it() -> None:
    helper = LibraryFile(filename="helper.py", sha256="aa", kind="PYTHON")
    codec = LibraryFile(filename="codec.jar", sha256="bb", kind="JAR")
    require_libraries([helper], {"aa", "cc"})
    with pytest.raises(LibrariesMissingError, match=r"without codec\.jar$"):
        require_libraries([helper, codec], {"aa", "cc"})
