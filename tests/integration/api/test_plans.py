"""Plans over HTTP, with a stand-in for the process that loads programs; see tests/integration/spark for that."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.control_plane.context import PLANS_OF_USER_MAX
from keyscale.api.errors import ApiError, ChangeIncompatibleError, PlanTimeoutError, ProgramUnloadableError
from keyscale.api.job_spec import changed, spec_of
from keyscale.api.jobs.jobs import require_job
from keyscale.api.launching.program_loading import ProgramLoading
from keyscale.api.operations import plans
from keyscale.api.operations.schemas.change_plan import PlanAnswer
from keyscale.api.shapes import FailureAnswer
from keyscale.db.models import Attempt
from keyscale.db.repositories import revisions
from keyscale.identifiers import CheckpointId, JobId, OperatorUid
from keyscale.jobs.protocol.messages import DriverMetrics, GraphNode
from keyscale.jobs.protocol.program import DeclaredSink, DeclaredSource, ProgramAnswer, ProgramDeclaration
from keyscale.state.documents.manifest import OperatorDeclaration, write_manifest
from keyscale.state.engine.heap import HeapEngine
from keyscale.state.keyed.backend import KeyedStateBackend
from keyscale.state.keyed.descriptors import ValueStateDescriptor
from keyscale.state.keyed.ttl import Ttl
from keyscale.state.objects.opening import open_store
from keyscale.state.restore.program_change import DeclaredOperator
from keyscale.vocabulary import AttemptStage, JobStatus, Role
from tests.support.jobs.declared_totals import TOTALS
from tests.support.state.state_job import COUNT, KEY_SCHEMA, StateJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

    from keyscale.api.control_plane.context import Context
    from keyscale.state.keyed.descriptors import StateDescriptor

pytestmark = pytest.mark.either_database

DECLARATION = ProgramDeclaration((TOTALS,), (DeclaredSource("source", ("kafka",)),), (DeclaredSink("out", "FileSink"),))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The answer of the stand-in, and the last question that it was asked."""
    kept: dict[str, Any] = {"answer": ProgramAnswer(DECLARATION)}

    def load(_: ProgramLoading, question: Any, content: Any, **settings: Any) -> ProgramAnswer:
        kept.update({"question": question, "content": b"".join(content), **settings})
        return kept["answer"]  # type: ignore[no-any-return]

    monkeypatch.setattr(ProgramLoading, "load", load)
    return kept


def planned(client: httpx.Client, spec: dict[str, Any]) -> httpx.Response:
    """Asks for the plan of a change."""
    return client.patch("/v1/jobs/flights", json={"spec": spec, "dry_run": True}, timeout=60)


def test_a_parallelism_alone_is_planned_without_loading_the_program(client: httpx.Client, job: dict[str, Any]) -> None:
    plan = planned(client, {"parallelism": 4}).json()["plan"]
    assert (plan["compatible"], plan["program_loaded"]) == (True, False)
    assert (plan["from_parallelism"], plan["to_parallelism"], plan["max_parallelism"]) == (2, 4, 16)
    assert [each["name"] for each in plan["settings"]] == ["parallelism"]
    assert plan["movement"]["checkpoint_location"] is None
    assert plan["downtime"] == {"expected_ms": None, "reason": "the job does not run", "samples_ms": []}
    assert client.get("/v1/jobs/flights").json() == job


def test_a_program_is_loaded_with_the_changed_settings_and_shows_its_states(
    client: httpx.Client, job: dict[str, Any], answers: dict[str, Any]
) -> None:
    spec = {
        "artifact_id": job["spec"]["artifact_id"],
        "parameters": {"a": "b"},
        "secrets": ["ORDERS"],
        "parallelism": 3,
    }
    plan = planned(client, spec).json()["plan"]
    assert (plan["compatible"], plan["requires_allow_non_restored_state"]) == (True, False)
    [operator] = plan["operators"]
    assert (operator["uid"], operator["fate"]) == ("totals", "NEW")
    assert [(each["name"], each["fate"], each["ttl_ms"]) for each in operator["states"]] == [("total", "NEW", 1000)]
    assert [(each["uid"], each["kind"], each["fate"]) for each in plan["sources"]] == [("source", "kafka", "NEW")]
    assert [(each["uid"], each["kind"], each["fate"]) for each in plan["sinks"]] == [("out", "FileSink", "NEW")]
    assert answers["content"] == b"print(1)\n"
    assert (answers["question"].parameters, answers["question"].parallelism) == ({"a": "b"}, 3)
    assert answers["secrets"] == ["ORDERS"]


def declaring(uid: str, *descriptors: StateDescriptor) -> ProgramAnswer:
    """The answer of a program of one operator with these states, found as a loader finds them."""
    declared = KeyedStateBackend(HeapEngine(), KEY_SCHEMA)
    for each in descriptors:
        declared.state(each)
    declaration = OperatorDeclaration((("id", "int64"),), declared.schema)
    return ProgramAnswer(ProgramDeclaration((DeclaredOperator(OperatorUid(uid), declaration),), (), ()))


@pytest.mark.parametrize(
    ("program", "operators", "states", "verdict"),
    [
        pytest.param(
            declaring("count", COUNT), {"count": "KEPT"}, {"count": "KEPT"}, (True, False), marks=pytest.mark.real
        ),
        pytest.param(
            declaring("count", COUNT, ValueStateDescriptor("more", pa.string())),
            {"count": "KEPT"},
            {"count": "KEPT", "more": "NEW"},
            (True, False),
            marks=pytest.mark.real,
        ),
        pytest.param(
            declaring("count", replace(COUNT, ttl=Ttl(1000))),
            {"count": "KEPT"},
            {"count": "MIGRATED"},
            (True, False),
            marks=pytest.mark.real,
        ),
        (
            declaring("count", ValueStateDescriptor("count", pa.string())),
            {"count": "INCOMPATIBLE"},
            {"count": "INCOMPATIBLE"},
            (False, False),
        ),
        (declaring("other", COUNT), {"count": "DROPPED", "other": "NEW"}, {"count": "DROPPED"}, (True, True)),
    ],
    ids=["KEPT", "NEW", "MIGRATED", "INCOMPATIBLE", "DROPPED"],
)
def test_the_fate_of_what_is_stored_is_planned_and_nothing_moves_on_one_host(  # noqa: PLR0917 - a program and its plan
    context: Context,
    client: httpx.Client,
    job: dict[str, Any],
    answers: dict[str, Any],
    tmp_path: Path,
    program: ProgramAnswer,
    operators: dict[str, str],
    states: dict[str, str],
    verdict: tuple[bool, bool],
) -> None:
    state = StateJob(open_store(context.settings.store_url), tmp_path / "local", JobId(job["id"]))
    state.start(2)
    state.run_batch({1: 1, 2: 1})
    state.checkpoint()
    answers["answer"] = program
    plan = planned(client, {"parameters": {"a": "b"}, "parallelism": 4}).json()["plan"]
    assert (plan["compatible"], plan["requires_allow_non_restored_state"]) == verdict
    assert {each["uid"]: each["fate"] for each in plan["operators"]} == operators
    [count] = [each for each in plan["operators"] if each["uid"] == "count"]
    assert {each["name"]: each["fate"] for each in count["states"]} == states
    [stored] = [each for each in count["states"] if each["name"] == "count"]
    assert stored["stored"] == "value of int64"
    assert bool(stored["rules"]) == (states["count"] == "MIGRATED")
    assert (stored["reason"] is None) == (states["count"] != "INCOMPATIBLE")
    if states["count"] == "INCOMPATIBLE":
        assert stored["declared"] == "value of string"
    [movement] = plan["movement"]["operators"]
    assert [each["index"] for each in movement["subtasks"]] == [0, 1, 2, 3]
    assert plan["movement"]["state_bytes"] > 0
    assert plan["movement"]["moved_bytes"] == 0
    assert client.get("/v1/jobs/flights").json() == job


@pytest.mark.parametrize("knows", [pytest.param("manifest", marks=pytest.mark.real), "graph"])
def test_a_sink_that_the_job_has_had_is_kept_though_no_batch_follows_its_latest_checkpoint(  # noqa: PLR0917 - a job
    context: Context, client: httpx.Client, job: dict[str, Any], answers: dict[str, Any], tmp_path: Path, knows: str
) -> None:
    state = StateJob(open_store(context.settings.store_url), tmp_path / "local", JobId(job["id"]))
    state.start(2)
    state.run_batch({1: 1})
    manifest, _ = state.checkpoint()
    if knows == "manifest":
        newer = CheckpointId(manifest.checkpoint_id + 1)
        sinks = {"out": "the token of the last batch", "old": "another one"}
        write_manifest(state.store, msgspec.structs.replace(manifest, checkpoint_id=newer, sinks=sinks))
    else:
        nodes = [GraphNode(uid="source", kind="SOURCE")]
        nodes += [GraphNode(uid=uid, kind="SINK", inputs=["source"]) for uid in ("out", "old")]
        with context.sessions.begin() as session:
            session.add(Attempt(job_id=job["id"], number=1, stage=AttemptStage.ENDED, cause="start", parallelism=2,
                                created_at_ms=1, metrics=DriverMetrics(graph=nodes).model_dump()))  # fmt: skip
    more = (*DECLARATION.sinks, DeclaredSink("more", "FileSink"))
    answers["answer"] = ProgramAnswer(msgspec.structs.replace(DECLARATION, sinks=more))
    plan = planned(client, {"parameters": {"a": "b"}}).json()["plan"]
    assert [(each["uid"], each["kind"], each["fate"]) for each in plan["sinks"]] == [
        ("more", "FileSink", "NEW"),
        ("old", None, "DROPPED"),
        ("out", "FileSink", "KEPT"),
    ]


@pytest.mark.usefixtures("job")
def test_a_plan_names_artifacts_by_name_and_version(
    client: httpx.Client, answers: dict[str, Any], upload: Callable[..., Any]
) -> None:
    newer = upload(b"print(2)\n").json()
    plan = planned(client, {"artifact_id": newer["id"]}).json()["plan"]
    assert [(each["name"], each["before"], each["after"]) for each in plan["settings"]] == [
        ("artifact_id", "job version 1", "job version 2"),
    ]
    assert answers["content"] == b"print(2)\n"


@pytest.mark.parametrize("status", [JobStatus.RESTARTING, pytest.param(JobStatus.RUNNING, marks=pytest.mark.real)])
def test_a_plan_knows_of_a_batch_that_only_a_dropped_sink_can_publish(  # noqa: PLR0917 - a job and its output
    context: Context,
    client: httpx.Client,
    job: dict[str, Any],
    answers: dict[str, Any],
    tmp_path: Path,
    status: JobStatus,
) -> None:
    store = open_store(context.settings.store_url)
    state = StateJob(store, tmp_path / "local", JobId(job["id"]), sinks={"old": "token"})
    state.start(2)
    state.run_batch({1: 1})
    with context.sessions.begin() as session:
        require_job(session, "flights").status = status
    answers["answer"] = ProgramAnswer(DECLARATION)
    plan = PlanAnswer.model_validate(planned(client, {"parameters": {"a": "b"}}).json()["plan"])
    (old,) = (each for each in plan.sinks if each.uid == "old")
    is_failing = status is JobStatus.RESTARTING  # a running driver publishes before it ends
    assert (old.fate, old.reason is not None, "old" in plan.dropped()) == ("DROPPED", is_failing, is_failing)


@pytest.mark.usefixtures("job")
def test_a_takeover_is_refused_where_a_plan_says_so_and_a_program_that_was_just_planned_is_not_loaded_again(
    context: Context, client: httpx.Client, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(**parameters: str) -> str | None:
        with context.sessions() as session:
            before = spec_of(revisions.current(session, require_job(session, "flights")))
        wanted, user = changed(before, {"parameters": parameters}), Principal("1", "admin", Role.ADMIN)
        try:
            plans.require_takeover(context, user, "flights", wanted, allow_non_restored_state=False)
        except ChangeIncompatibleError as error:
            return str(error)
        return None

    planned(client, {"parameters": {"a": "1"}})
    question = answers.pop("question")
    assert judge(a="1") is None
    assert "question" not in answers, "what a plan has loaded is not loaded again"
    lost = PlanAnswer.model_validate(planned(client, {}).json()["plan"])
    monkeypatch.setattr(
        plans, "_answer", lambda *_: lost.model_copy(update={"requires_allow_non_restored_state": True})
    )
    assert "would be lost" in str(judge(a="2"))
    assert (answers["question"].parameters, question.parameters) == ({"a": "2"}, {"a": "1"})
    assert judge() is None, "nothing that says which state there is changes"
    failed = FailureAnswer(code="X", message="no")
    monkeypatch.setattr(plans, "_answer", lambda *_: lost.model_copy(update={"compatible": False, "failure": failed}))
    assert judge(a="3") is None, "what the program declares is not known"


@pytest.mark.parametrize(("error", "status"), [(PlanTimeoutError, 504), (ProgramUnloadableError, 422)])
@pytest.mark.usefixtures("job")
def test_a_change_that_cannot_be_planned_is_refused_and_names_the_way_without_a_plan(
    context: Context, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, error: type[ApiError], status: int
) -> None:
    def load(*_: Any, **__: Any) -> ProgramAnswer:
        raise error("the program waits")

    monkeypatch.setattr(ProgramLoading, "load", load)
    with context.sessions.begin() as session:
        require_job(session, "flights").status = JobStatus.RUNNING
    headers = {"If-Match": "*"}
    refusal = client.patch("/v1/jobs/flights", json={"spec": {"parameters": {"a": "1"}}}, headers=headers)
    assert (refusal.status_code, refusal.json()["code"]) == (status, error.code)
    assert "--no-plan-first" in refusal.json()["advice"]


def test_a_failure_of_the_program_is_shown_with_secrets_masked(
    client: httpx.Client, job: dict[str, Any], answers: dict[str, Any]
) -> None:
    failure = {"code": "JOB_SCRIPT_FAILED", "message": "it has of-the-orders", "traceback": "of-the-orders"}
    answers["answer"] = ProgramAnswer(failure=failure)
    plan = planned(client, {"artifact_id": job["spec"]["artifact_id"], "secrets": ["ORDERS"]}).json()["plan"]
    assert (plan["compatible"], plan["program_loaded"]) == (False, False)
    assert (plan["failure"]["message"], plan["failure"]["traceback"]) == ("it has *****", "*****")


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"parallelism": 17}, "PARALLELISM_OUT_OF_RANGE"),
        ({"artifact_id": "none"}, "ARTIFACT_NOT_FOUND"),
        ({"secrets": ["NOBODYS"]}, "SECRET_UNKNOWN"),
        ({"spark_conf": {"spark.driver.extraJavaOptions": "-x"}}, "SPARK_CONF_NOT_ALLOWED"),
        ({"unknown": 1}, "REQUEST_INVALID"),
    ],
)
@pytest.mark.real
@pytest.mark.usefixtures("job")
def test_what_a_job_may_not_have_is_refused_before_anything_is_loaded(
    client: httpx.Client, spec: dict[str, Any], code: str
) -> None:
    assert planned(client, spec).json()["code"] == code


@pytest.mark.real
def test_programs_that_load_forever_hold_up_no_other_request(
    client: httpx.Client, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def load(*_: Any, **__: Any) -> ProgramAnswer:
        assert ends.wait(60)
        return ProgramAnswer(DECLARATION)

    monkeypatch.setattr(ProgramLoading, "load", load)
    body = {"artifact_id": job["spec"]["artifact_id"]}
    wanted = 50  # more than the control plane has threads for requests
    with ThreadPoolExecutor(wanted) as pool:
        sent = [pool.submit(planned, client, body) for _ in range(wanted)]
        try:
            refused = [one.result() for one in as_completed_some(sent, wanted - PLANS_OF_USER_MAX)]
            assert client.get("/v1/jobs/flights", timeout=20).status_code == 200
        finally:
            ends.set()
    assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(429, "TOO_MANY_IN_FLIGHT")}
    refusals = wanted - PLANS_OF_USER_MAX
    assert sorted(one.result().status_code for one in sent) == [200] * PLANS_OF_USER_MAX + [429] * refusals


def as_completed_some(sent: list[Future[Any]], count: int) -> list[Future[Any]]:
    return list(islice(as_completed(sent, timeout=30), count))
