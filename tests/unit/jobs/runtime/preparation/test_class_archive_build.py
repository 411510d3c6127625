from __future__ import annotations

import itertools
from pathlib import Path
from subprocess import TimeoutExpired
from types import SimpleNamespace

import pytest

from keyscale.installation import IMPORT_PATH
from keyscale.jobs.protocol.class_archive import ClassArchive
from keyscale.jobs.protocol.spark_settings import DEFAULT_SETTINGS, LOCAL_SETTINGS, REQUIRED_SETTINGS
from keyscale.jobs.runtime.preparation import class_archive_build
from keyscale.jobs.runtime.preparation.class_archive_build import build_if_missing


def test_an_archive_that_exists_is_not_built_again(tmp_path: Path) -> None:
    archive = ClassArchive.at(tmp_path)
    archive.path.write_bytes(b"built")
    assert build_if_missing(archive, python="/nowhere/python")
    assert archive.path.read_bytes() == b"built"


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    archive = ClassArchive.at(tmp_path / "cache")
    assert not build_if_missing(archive, python="/nowhere/python")
    assert "no class archive" in caplog.text
    assert not list((tmp_path / "cache").iterdir())


def test_a_build_runs_a_driver_without_a_job_and_leaves_the_archive_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ClassArchive.at(tmp_path / "cache")
    ran: list[tuple[list[str], dict[str, str], Path]] = []

    def run(command: list[str], *, env: dict[str, str], cwd: str, timeout: float, **_: object) -> object:
        assert timeout == 600
        ran.append((command, env, Path(cwd)))
        built = next(part for part in command if "ArchiveClassesAtExit" in part)
        Path(built.partition("ArchiveClassesAtExit=")[2].split()[0]).write_bytes(b"classes")
        return SimpleNamespace(stderr=b"")

    monkeypatch.setattr(class_archive_build, "subprocess", SimpleNamespace(run=run, TimeoutExpired=TimeoutExpired))
    assert build_if_missing(archive, python="/venv/bin/python")
    assert archive.path.read_bytes() == b"classes"
    assert [*archive.path.parent.iterdir()] == [archive.path]
    ((command, environment, scratch),) = ran
    assert command[:3] == ["/venv/bin/spark-submit", "--master", "local[2,4]"]
    assert command[-2:] == [str(Path(class_archive_build.__file__).resolve()), str(scratch / "warm-up")]
    settings = dict(part.split("=", 1) for flag, part in itertools.pairwise(command) if flag == "--conf")
    assert {**DEFAULT_SETTINGS, **REQUIRED_SETTINGS, **LOCAL_SETTINGS}.items() - settings.items() <= {
        ("spark.driver.extraJavaOptions", DEFAULT_SETTINGS.get("spark.driver.extraJavaOptions"))
    }
    assert settings["spark.local.dir"] == str(scratch / "spark")
    assert settings["spark.sql.warehouse.dir"] == str(scratch / "warehouse")
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == "/venv/bin/python"
    assert (environment["SPARK_LOCAL_IP"], environment["PYTHONPATH"]) == ("127.0.0.1", str(IMPORT_PATH))
    assert build_if_missing(archive, python="/venv/bin/python")
    assert len(ran) == 1


@pytest.mark.parametrize("error", [None, TimeoutExpired("spark-submit", 600)])
def test_a_build_that_writes_nothing_is_logged_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    def run(*_: object, **__: object) -> object:
        if error is not None:
            raise error
        return SimpleNamespace(stderr=b"no \xff memory")

    monkeypatch.setattr(class_archive_build, "subprocess", SimpleNamespace(run=run, TimeoutExpired=TimeoutExpired))
    archive = ClassArchive.at(tmp_path)
    assert not build_if_missing(archive)
    assert [*archive.path.parent.iterdir()] == []
    (message,) = caplog.messages
    assert message.startswith("no class archive could be built: ")
    assert ("memory" if error is None else "timed out") in message


def test_the_driver_without_a_job_warms_up_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    class WarmUp:
        def __init__(self, *given: object, **named: object) -> None:
            made.append((given, named))

        def start(self) -> None:
            made.append("start")

        def wait(self) -> None:
            made.append("wait")

    session = SimpleNamespace(builder=SimpleNamespace(getOrCreate=lambda: "spark"))
    monkeypatch.setattr(class_archive_build, "SparkSession", session)
    monkeypatch.setattr(class_archive_build, "WarmUp", WarmUp)
    monkeypatch.setattr(class_archive_build.sys, "argv", ["program", str(tmp_path)])
    class_archive_build.main()
    assert made == [(("spark", tmp_path), {"parallelism": 2}), "start", "wait"]
