"""The specification that options make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.cli.errors import InvalidArgumentError
from keyscale.api.cli.setting_options import specification_of
from keyscale.api.jobs.setting_routes import list_settings
from keyscale.jobs.protocol.declared_settings import declared_settings
from keyscale.jobs.protocol.specification import JobSpec, changed

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.client.keyscale import Keyscale

ARTIFACT = "0123456789abcdef0123456789abcdef"
SETTINGS = list_settings(cast("Any", None)).model_dump(mode="json")
VALUES = {"integer": "11000", "number": "0.5", "string": "TEXT", "array": f"{ARTIFACT}, package:kafka"}


class Platform:
    """A control plane that takes files and knows the settings."""

    def __init__(self) -> None:
        self.filenames: list[str] = []

    def upload(self, path: str, *, filename: str, content: bytes) -> dict[str, Any]:
        assert path == "/v1/artifacts"
        assert content
        self.filenames.append(filename)
        return {"id": f"{len(self.filenames):032x}"}

    def get(self, path: str) -> Any:
        assert path == "/v1/settings"
        return SETTINGS


def spec(platform: Platform | None = None, **options: Any) -> dict[str, Any]:
    return specification_of(cast("Keyscale", platform or Platform()), **options)


def test_what_is_not_given_is_not_in_the_request() -> None:
    assert spec() == {}


def test_short_options_and_settings_by_path_make_one_specification() -> None:
    assert spec(
        parallelism=2,
        parameters=[("a", "1")],
        secrets=["ORDERS", "CLICKS"],
        values=[
            ("checkpoints.interval_ms", "9_000"),
            ("restart.type", "fixed-delay"),
            ("restart.attempts", "3"),
            ("parameters.kafka.servers", "host:9092"),
            ("parameters.password.secret", "ORDERS"),
            ("spark_conf.spark.executor.memory", "2g"),
            ("libraries", ""),
        ],
        unset=["parameters.b", "batch_interval_ms", "checkpoints"],
    ) == {
        "parallelism": 2,
        "parameters": {"kafka.servers": "host:9092", "password": {"secret": "ORDERS"}, "b": None, "a": "1"},
        "secrets": ["ORDERS", "CLICKS"],
        "checkpoints": None,
        "restart": {"type": "fixed-delay", "attempts": 3},
        "spark_conf": {"spark.executor.memory": "2g"},
        "libraries": [],
        "batch_interval_ms": None,
    }


@pytest.mark.parametrize("setting", declared_settings(), ids=lambda each: each.path)
def test_every_setting_can_be_set_by_its_path_and_unset(setting: Any) -> None:
    path = setting.path.replace("*", "name")
    text = next((each for each in setting.choices if each != setting.default), VALUES[setting.type])
    text = {"restart.attempts_before_reset_backoff": "7", "restart.max_failures_per_interval": "7"}.get(path, text)
    text = {"restart.backoff_multiplier": "2", "secrets": "A, B", "savepoints.keep_count": "7"}.get(path, text)
    text = {"savepoints.interval_ms": "3_600_000", "savepoints.keep_age_ms": "3_600_000"}.get(path, text)
    text = {"autoscaler.excluded_hours": "08:00-09:30, 22:00-02:00"}.get(path, text)
    given = spec(values=[(path, text)])
    if setting.of_types:
        given["restart"]["type"] = setting.of_types[0]
    present = JobSpec(artifact_id="a")
    assert changed(present, given) != present
    if path != "artifact_id":
        reset = {path.partition(".")[0]: None, "secrets": None}
        assert changed(changed(present, given), reset).given() == present.given()


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("checkpoint.interval_ms", "checkpoints.interval_ms"),
        ("checkpoints.interval", "checkpoints.interval_ms"),
        ("paralelism", "parallelism"),
        ("restart.attempt", "restart.attempts"),
    ],
)
def test_a_misspelt_path_is_refused_with_the_nearest(path: str, nearest: str) -> None:
    with pytest.raises(InvalidArgumentError, match=nearest):
        spec(values=[(path, "1")])


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("spark_conf", "a"),
        ("restart", "none"),
        ("parallelism", "two"),
        ("checkpoints.interval_ms", "1.5"),
        ("restart.jitter_factor", "x"),
        ("hash_id", "python"),
    ],
)
def test_a_value_of_another_type_is_refused(path: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=path):
        spec(values=[(path, text)])


def test_files_are_uploaded_and_named_by_their_ids(tmp_path: Path) -> None:
    for name in ("program.py", "shapes.py"):
        (tmp_path / name).write_text("x = 1\n")
    platform = Platform()
    library = str(tmp_path / "shapes.py")
    assert spec(platform, file=tmp_path / "program.py", libraries=(library, "package:kafka", ARTIFACT)) == {
        "artifact_id": f"{1:032x}",
        "libraries": [f"{2:032x}", "package:kafka", ARTIFACT],
    }
    assert platform.filenames == ["program.py", "shapes.py"]


@pytest.mark.parametrize(
    "options",
    [{"artifact_id": ARTIFACT}, {"values": [("unknown", "1")]}, {"unset": ["unknown"]}],
)
def test_wrong_options_are_refused_before_an_upload(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("x = 1\n")
    platform = Platform()
    with pytest.raises(InvalidArgumentError):
        spec(platform, file=tmp_path / "program.py", **options)
    assert platform.filenames == []
