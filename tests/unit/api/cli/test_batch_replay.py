"""`keyscale replay` finds the program that has run a batch, and hands it over to the process that replays it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from keyscale.api.cli import batch_replay
from keyscale.client import sender
from keyscale.state.layout import location_of
from keyscale.state.objects.local_store import LocalObjectStore
from tests.support.control_plane.command_line import CommandAnswer, run
from tests.support.state.state_job import StateJob

if TYPE_CHECKING:
    from pathlib import Path

SPEC: dict[str, Any] = {
    "artifact_id": "program",
    "libraries": ["tools", "package:kafka"],
    "parameters": {"input": "/in", "password": "*****", "database": {"secret": "DATABASE"}},
    "spark_conf": {"spark.sql.ansi.enabled": "false"},
}


class Asked:
    """A control plane with one job, and the request that the replay is given."""

    def __init__(self, store_url: str) -> None:
        self.files: dict[str, bytes] = {}
        self.request: dict[str, Any] | None = None
        self.answers: dict[str, Any] = {
            "/v1/jobs/counts": {"id": "job", "status": {"store_url": store_url}},
            "/v1/jobs/job/attempts": {
                "attempts": [{"number": 2, "revision": 7}, {"number": 1, "revision": 3}],
                "next": None,
            },
            "/v1/jobs/job/revisions/3": {"spec": SPEC},
            "/v1/jobs/job/revisions/7": {"spec": {**SPEC, "libraries": [], "parameters": {}}},
            "/v1/artifacts/program": {"filename": "counts.py"},
            "/v1/artifacts/tools": {"filename": "tools.whl"},
        }

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.endswith("/content"):
            return httpx.Response(200, content=path.encode())
        return httpx.Response(200, json=self.answers[path])

    def become(self, file: Path) -> None:
        self.request = json.loads(file.read_text())
        self.files = {path.name: path.read_bytes() for path in file.parent.rglob("artifacts/*/*")}


@pytest.fixture
def job(tmp_path: Path) -> StateJob:
    job = StateJob(LocalObjectStore(tmp_path / "store"), tmp_path / "local")
    job.start(2)
    job.run_batch({1: 1})
    job.checkpoint()
    job.start(1)
    job.run_batch({2: 2})
    return job


@pytest.fixture
def asked(job: StateJob, monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked(job.store.url)
    asked.answers["/v1/jobs/counts"]["id"] = "job"
    monkeypatch.setattr(sender, "_proving", lambda _: httpx.MockTransport(asked.answer))
    monkeypatch.setattr(sender, "_trusted", lambda _: False)
    monkeypatch.setattr(batch_replay, "become", asked.become)
    return asked


def command(*arguments: str) -> CommandAnswer:
    return run("--url", "http://127.0.0.1:1", "--token", "the-token", "replay", *arguments)


def test_the_program_is_that_of_the_revision_whose_attempt_has_committed_the_batch(job: StateJob, asked: Asked) -> None:
    assert job.job_id == "job"
    answer = command("counts", "--batch", "0", "--parameter", "password=it", "--break", "17", "--pdb", "--key", "ada")
    assert answer.exit_code == 0, answer.stderr
    assert "package:kafka" in answer.stderr
    assert asked.request is not None
    definition = asked.request.pop("definition")
    assert (definition["revision"], definition["parameters"]) == (3, SPEC["parameters"])
    assert definition["spark_conf"] == SPEC["spark_conf"]
    assert [name.rpartition("/")[2] for name in (definition["file"], *definition["libraries"])] == [
        "counts.py",
        "tools.whl",
    ]
    assert asked.files == {
        "counts.py": b"/v1/artifacts/program/content",
        "tools.whl": b"/v1/artifacts/tools/content",
    }
    assert asked.request == {
        "store_url": job.store.url,
        "job_id": "job",
        "batch_id": 0,
        "program": None,
        "parameters": {"password": "it"},
        "key": "ada",
        "operator": None,
        "breakpoints": ["17"],
        "post_mortem": True,
        "rows_max": 20,
        "as_json": False,
    }


@pytest.mark.parametrize("batch", [["--batch", "1"], []])
def test_a_later_batch_has_the_program_of_a_later_attempt(asked: Asked, batch: list[str]) -> None:
    assert command("counts", *batch).exit_code == 0
    assert asked.request is not None
    assert asked.request["definition"]["revision"] == 7


def test_a_location_needs_no_control_plane(job: StateJob, asked: Asked, tmp_path: Path) -> None:
    program = tmp_path / "fixed.py"
    program.write_text("")
    manifest, _ = job.checkpoint()
    location = location_of(job.store.url, manifest.path)
    assert command(location, "--program", str(program)).exit_code == 0
    assert asked.request is not None
    assert (asked.request["store_url"], asked.request["job_id"]) == (job.store.url, "job")
    assert (asked.request["program"], "definition" in asked.request) == (str(program), False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--batch", "0"], "masks the parameter password"),
        (["--batch", "7"], "batch 7 does not exist; the batch after the last commit is 2"),
        (["--parameter", "password"], "--parameter is NAME=VALUE"),
        (["--program", "/nowhere.py"], "/nowhere.py cannot be read"),
    ],
)
def test_a_batch_that_cannot_be_replayed_is_refused_and_leaves_no_file(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    answer = command("counts", *arguments)
    assert (answer.exit_code, reason in answer.stderr) == (1, True), answer.stderr
    assert asked.request is None
    assert list(scratch.iterdir()) == []
