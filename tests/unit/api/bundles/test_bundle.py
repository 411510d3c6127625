"""Secrets are masked in every text of a bundle, and its structure stays."""

from __future__ import annotations

import io
import json
import zipfile
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from keyscale.api.access.principal import Principal
from keyscale.api.bundles import bundle
from keyscale.api.bundles.bundle import masked
from keyscale.api.diagnostics.schemas import DiagnosticRequest
from keyscale.api.errors import JobNotFoundError, LogNotHereError
from keyscale.api.logs.logs import LogPart
from keyscale.api.metrics.series import Span
from keyscale.db.models import Attempt, Job
from keyscale.db.repositories.events import EventFilter
from keyscale.installation import VERSION
from keyscale.jobs.protocol.redaction import Mask
from keyscale.vocabulary import DiagnosticKind, Role

if TYPE_CHECKING:
    from keyscale.errors import KeyscaleError

MASK = Mask({"KEYSCALE_JOB_SECRET_DATABASE": "hunter2-and-more"})


def test_known_and_likely_secrets_are_masked_in_every_text_and_name() -> None:
    given = {
        "message": "no access for hunter2-and-more",
        "hunter2-and-more": 1,
        "list": [{"url": "postgres://me:hunter2-and-more@host/db"}, "Authorization: Bearer abcdefghijkl"],
        "api_key": "0123456789",
        "parameters": {"password": "xyz", "input": "/data"},
        "batches": 7,
        "ratio": 0.5,
        "none": None,
    }
    shown = masked(given, MASK)
    text = json.dumps(shown)
    for secret in ("hunter2", "abcdefghijkl", "0123456789", "xyz"):
        assert secret not in text
    assert (shown["batches"], shown["ratio"], shown["none"], shown["parameters"]["input"]) == (7, 0.5, None, "/data")


class Part(BaseModel):
    """An answer of one of the services that a bundle asks."""

    of: list[str] = []
    text: str = ""
    parts: list[dict[str, str]] = []


class World:
    """A job whose services answer with what they were asked, and a secret of its run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: dict[str, KeyscaleError] = {}
        self.context: Any = SimpleNamespace(
            reads=lambda: nullcontext(None), launcher=SimpleNamespace(secrets_of=self._secrets_of)
        )
        job = SimpleNamespace(
            id="job", name="flights/eu", model_dump=lambda mode: {"mode": mode, "say": "of-the-orders"}
        )
        monkeypatch.setattr(bundle.jobs, "show", lambda _, name: {"flights": job}[name])
        monkeypatch.setattr(bundle, "now_ms", lambda: NOW_MS)
        for name, module, function in (
            ("attempts", bundle.jobs, "list_attempts"),
            ("exceptions", bundle.exceptions, "list_of"),
            ("operations", bundle.operations, "list_of"),
            ("checkpoints", bundle.checkpoints, "show_statistics"),
            ("events", bundle.events, "list_job_events"),
            ("series", bundle.series, "show"),
            ("platform", bundle.artifacts, "show_platform"),
            ("threads", bundle.diagnostics, "take"),
            ("log", bundle.logs, "show"),
        ):
            monkeypatch.setattr(module, function, self._answer(name))
        monkeypatch.setattr(bundle.jobs, "require_job", lambda _, job_id: Job(id=job_id))
        attempt = Attempt(number=4, run=2)
        monkeypatch.setattr(bundle.attempts, "latest", lambda _, job_id: {"job": attempt}[job_id])
        monkeypatch.setattr(bundle.revisions, "in_use", lambda _, of, number: (of.id, number))
        self.asked: dict[str, Any] = {}

    def _secrets_of(self, *of: Any) -> dict[str, str]:
        return {("job", 2, ("job", 4)): {"KEYSCALE_JOB_SECRET_ORDERS": "of-the-orders"}}[of]

    def _answer(self, name: str) -> Any:
        def answer(context: Any, *asked: Any, **named: Any) -> Part:
            assert context is self.context
            self.asked[name] = (*asked, *named.values())
            if name in self.refused:
                raise self.refused[name]
            stacks = [{"name": "driver", "text": "in run"}, {"name": "worker", "text": "of-the-orders"}]
            return Part(of=[name, "of-the-orders"], text="a log of-the-orders", parts=stacks)

        return answer

    def unpacked(self, user: Principal) -> tuple[str, dict[str, str]]:
        made = bundle.bundle_of(self.context, user, "flights")
        with zipfile.ZipFile(io.BytesIO(made.content)) as archive:
            return made.filename, {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


NOW_MS = 100 * 3_600_000
ANN = Principal("id", "ann", Role.OPERATOR)
LISTS = ("attempts", "exceptions", "operations", "checkpoints", "events", "series", "platform")


def test_a_bundle_has_the_answer_of_each_service_to_its_user_without_secrets(world: World) -> None:
    name, found = world.unpacked(ANN)
    assert name == f"flights_eu-{NOW_MS}.zip"
    assert world.asked == {
        "attempts": ("job", bundle.LATEST),
        "exceptions": ("job", bundle.LATEST),
        "operations": ("job", bundle.LATEST, (), ()),
        "checkpoints": ("job", bundle.LATEST),
        "events": (ANN, "job", bundle.LATEST, EventFilter()),
        "series": ("job", Span(from_ms=NOW_MS - bundle.SERIES_SPAN_MS), ()),
        "platform": (),
        "threads": (
            ANN, "job", DiagnosticRequest(kind=DiagnosticKind.THREAD_DUMP), bundle.THREAD_DUMP_SECONDS_MAX
        ),
        "log": (ANN, "job", LogPart(tail_bytes=bundle.LOG_BYTES_MAX)),
    }  # fmt: skip
    parts = {file.removeprefix("flights_eu/"): text for file, text in found.items()}
    assert set(parts) == {f"{each}.json" for each in (*LISTS, "job", "versions", "missing")} | {
        "log.txt",
        "threads.txt",
    }
    assert not any("of-the-orders" in text for name, text in parts.items() if name.endswith(".json"))
    assert json.loads(parts["job.json"]) == {"mode": "json", "say": "*****"}
    assert [json.loads(parts[f"{each}.json"])["of"] for each in LISTS] == [[each, "*****"] for each in LISTS]
    assert parts["threads.txt"].startswith("=== driver ===\nin run\n=== worker ===\n")
    assert json.loads(parts["versions.json"]) == {"keyscale": VERSION}
    assert json.loads(parts["missing.json"]) == {}


def test_a_part_that_cannot_be_read_is_named_with_its_reason_and_its_secrets_masked(world: World) -> None:
    world.refused = {"log": LogNotHereError("no of-the-orders"), "series": JobNotFoundError("gone")}
    _, found = world.unpacked(Principal("id", "ann", Role.VIEWER))
    missing = json.loads(found["flights_eu/missing.json"])
    assert missing == {
        "series": f"{JobNotFoundError.code}: gone",
        "threads": "ROLE_TOO_LOW: thread dumps need the role OPERATOR",
        "log": f"{LogNotHereError.code}: no *****",
    }
    assert "threads" not in world.asked, "a viewer may not look into jobs"
    gone = {f"flights_eu/{name}" for name in ("log.txt", "threads.txt", "series.json")}
    assert gone.isdisjoint(found)
