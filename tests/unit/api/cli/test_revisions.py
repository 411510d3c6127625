"""The request that the options of a change make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.api.cli.errors import InvalidArgumentError
from keyscale.api.cli.revisions import specification_change

if TYPE_CHECKING:
    from pathlib import Path

    from keyscale.api.cli.client import ControlPlane

ARTIFACT = "0123456789abcdef0123456789abcdef"
NOTHING: dict[str, Any] = {
    "artifact_id": None,
    "file": None,
    "libraries": (),
    "requirements": None,
    "no_libraries": False,
    "parallelism": None,
    "parameters": (),
    "unset_parameters": (),
    "spark_conf": (),
    "unset_spark_conf": (),
    "checkpoint_interval_ms": None,
    "batch_interval_ms": None,
}


class Uploads:
    """A control plane that takes files."""

    def __init__(self) -> None:
        self.filenames: list[str] = []

    def upload(self, path: str, *, filename: str, content: bytes) -> dict[str, Any]:
        assert path == "/v1/artifacts"
        assert content
        self.filenames.append(filename)
        return {"id": f"{len(self.filenames):032x}"}


def change(uploads: Uploads | None = None, **options: Any) -> dict[str, Any]:
    return specification_change(cast("ControlPlane", uploads or Uploads()), **{**NOTHING, **options})


def test_what_is_not_given_is_not_in_the_request() -> None:
    assert change() == {}


def test_every_setting_of_a_specification_can_be_changed() -> None:
    assert change(
        secret_parameters=[("password", "ORDERS")],
        secrets=["ORDERS", "CLICKS"],
        checkpoint_interval_ms=9000,
        retained_checkpoints=5,
        restart_strategy="fixed-delay",
        restart_options=[("attempts", "3")],
    ) == {
        "parameters": {"password": {"secret": "ORDERS"}},
        "secrets": ["ORDERS", "CLICKS"],
        "checkpoints": {"interval_ms": 9000, "retained_count": 5},
        "restart": {"type": "fixed-delay", "attempts": "3"},
    }


def test_values_are_set_and_removed() -> None:
    assert change(parallelism=2, parameters=[("a", "1")], unset_parameters=["b"], batch_interval_ms=0) == {
        "parallelism": 2,
        "parameters": {"a": "1", "b": None},
        "batch_interval_ms": 0,
    }


def test_files_are_uploaded_and_named_by_their_ids(tmp_path: Path) -> None:
    for name in ("program.py", "shapes.py"):
        (tmp_path / name).write_text("x = 1\n")
    uploads = Uploads()
    library = str(tmp_path / "shapes.py")
    assert change(uploads, file=tmp_path / "program.py", libraries=(library, "package:kafka", ARTIFACT)) == {
        "artifact_id": f"{1:032x}",
        "libraries": [f"{2:032x}", "package:kafka", ARTIFACT],
    }
    assert uploads.filenames == ["program.py", "shapes.py"]


def test_all_libraries_can_be_removed() -> None:
    assert change(no_libraries=True) == {"libraries": []}


@pytest.mark.parametrize(
    "options",
    [
        {"artifact_id": ARTIFACT, "file": "program.py"},
        {"libraries": (ARTIFACT,), "no_libraries": True},
        {"requirements": "requirements.txt", "no_libraries": True},
    ],
)
def test_options_that_say_two_things_are_refused_before_an_upload(options: dict[str, Any]) -> None:
    uploads = Uploads()
    with pytest.raises(InvalidArgumentError):
        change(uploads, **options)
    assert uploads.filenames == []
