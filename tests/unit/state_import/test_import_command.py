"""The commands of `keyscale state import`: their options, and what they refuse before Spark starts."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from keyscale import state_import
from keyscale.api.cli.root import main
from keyscale.state_import import (
    FlinkImportReport,
    ImportedFlinkState,
    ImportedSource,
    ImportedState,
    ImportReport,
)

if TYPE_CHECKING:
    from pathlib import Path

REPORT = ImportReport(
    "file:///store/views/savepoints/of-spark/manifest.json",
    7,
    9_000,
    (ImportedState(0, "", "unique", "seen", 3, 3),),
    (ImportedSource(0, "views", '{"logOffset":1}'),),
    ("operator 'windows' starts empty",),
)


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "job.py"
    file.touch()
    return str(file)


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each import, which only returns a report."""
    made: list[dict[str, Any]] = []

    def import_spark_checkpoint(session: Any, checkpoint: str, **arguments: Any) -> ImportReport:
        made.append({"session": session, "checkpoint": checkpoint, **arguments})
        return REPORT

    monkeypatch.setattr(state_import, "local_session", nullcontext)
    monkeypatch.setattr(state_import, "import_spark_checkpoint", import_spark_checkpoint)
    return made


def test_the_options_say_what_does_not_follow_from_the_program(
    imports: list[dict[str, Any]], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--operator", "0=unique", "--drop-operator", "1", "--source", "0=views", "--drop-source", "1"]
    options += ["--key", "unique", "id", "key.user", "--value", "totals", "total", "value.sum", "-P", "input=in"]
    options += ["--spark-conf", "spark.master=local[1]", "--parallelism", "3", "--to", "LOCATION", "--json"]
    assert main(["state", "import", "spark", "checkpoint", "--program", program, *options]) == 0
    (given,) = imports
    assert given["session"] == {"spark.master": "local[1]"}
    assert (given["checkpoint"], given["to"], given["parameters"]) == ("checkpoint", "LOCATION", {"input": "in"})
    assert (given["operators"], given["sources"]) == ({0: "unique", 1: None}, {0: "views", 1: None})
    assert given["keys"] == {("unique", "id"): "key.user"}
    assert given["values"] == {("totals", "total"): "value.sum"}
    assert (given["parallelism"], given["max_parallelism"], given["hash_id"]) == (3, 128, "spark")
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(REPORT.to_json()))


def test_the_report_shows_what_was_taken_and_what_was_not(
    imports: list[dict[str, Any]], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["state", "import", "spark", "checkpoint", "--program", program, "--dry-run"]) == 0
    assert imports[0]["to"] is None
    shown = capsys.readouterr().out
    assert "- operator 'windows' starts empty" in shown
    assert ["0", "unique", "seen", "3", "3"] in [line.split() for line in shown.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --to LOCATION or --dry-run"),
        (["--dry-run", "--to", "LOCATION"], "give either --to LOCATION or --dry-run"),
        (["--dry-run", "--program", "missing.py"], "missing.py is missing, or is neither"),
        (["--dry-run", "--operator", "unique"], "'unique' is not of the form NUMBER=UID"),
        (["--dry-run", "--source", "0="], "'0=' is not of the form NUMBER=UID"),
    ],
)
def test_wrong_options_are_refused_before_spark_starts(
    imports: list[dict[str, Any]],
    program: str,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["state", "import", "spark", "checkpoint", "--program", program, *arguments]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
    assert imports == []


def test_the_options_of_flink_name_operators_and_states(
    monkeypatch: pytest.MonkeyPatch, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[dict[str, Any]] = []
    taken = ImportedFlinkState("1f", "count", "totals", "count", 3, 3)

    def import_flink_savepoint(_: Any, location: str, **arguments: Any) -> FlinkImportReport:
        made.append({"location": location, **arguments})
        return FlinkImportReport(
            "file:///store/totals/savepoints/of-flink", (taken,), (), ("state 'seen' starts empty",)
        )

    monkeypatch.setattr(state_import, "local_session", nullcontext)
    monkeypatch.setattr(state_import, "import_flink_savepoint", import_flink_savepoint)
    command = ["state", "import", "flink", "savepoint-1", "--program", program]
    options = ["--operator", "a=b=totals", "--drop-operator", "windows", "--state", "totals", "sum", "count"]
    options += ["--drop-state", "totals", "seen", "--hash", "java"]
    assert main([*command, *options, "--to", "LOCATION"]) == 0
    (given,) = made
    assert (given["location"], given["to"], given["hash_id"]) == ("savepoint-1", "LOCATION", "java")
    assert given["operators"] == {"a=b": "totals", "windows": None}
    assert given["states"] == {("totals", "sum"): "count", ("totals", "seen"): None}
    shown = capsys.readouterr().out
    assert "1f" in shown
    assert "- state 'seen' starts empty" in shown
    assert main(command) != 0
    assert main([*command, "--operator", "totals", "--dry-run"]) != 0
    assert len(made) == 1
