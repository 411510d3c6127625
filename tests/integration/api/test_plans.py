"""Plans over HTTP, with a stand-in for the process that loads programs; see tests/integration/spark for that."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.access.principal import Principal
from keyscale.api.errors import ChangeIncompatibleError
from keyscale.api.launching.program_loading import ProgramLoading
from keyscale.api.schemas.base import FailureAnswer
from keyscale.api.schemas.change_plan import PlanAnswer
from keyscale.api.services import plans
from keyscale.api.services.context import PLANS_OF_USER_MAX
from keyscale.api.services.jobs import require_job
from keyscale.api.specification import Specification, changed
from keyscale.db.repositories import revisions
from keyscale.db.statuses import Role
from keyscale.jobs.protocol.program import DeclaredSink, DeclaredSource, ProgramAnswer, ProgramDeclaration
from keyscale.state.documents.manifest import OperatorDeclaration
from keyscale.state.identifiers import OperatorUid
from keyscale.state.keyed.descriptors import StateKind
from keyscale.state.keyed.schema import KeyedSchema, StateSchema, ValueFormat
from keyscale.state.restore.program_change import DeclaredOperator

if TYPE_CHECKING:
    import httpx

    from keyscale.api.services.context import Context

TOTALS = DeclaredOperator(
    OperatorUid("totals"),
    OperatorDeclaration(
        (("user", "string"),),
        KeyedSchema((("user", "string"),), (StateSchema("total", StateKind.VALUE, (ValueFormat("int64"),)),)),
    ),
    ttls_ms={"total": 1000},
)
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


def test_a_parallelism_alone_is_planned_without_loading_the_program(client: httpx.Client, job: dict[str, Any]) -> None:
    plan = client.post("/jobs/flights/plan", json={"parallelism": 4}).json()
    assert (plan["compatible"], plan["program_loaded"]) == (True, False)
    assert (plan["from_parallelism"], plan["to_parallelism"], plan["max_parallelism"]) == (2, 4, 16)
    assert [each["name"] for each in plan["settings"]] == ["parallelism"]
    assert plan["movement"]["checkpoint_location"] is None
    assert plan["downtime"] == {"expected_ms": None, "reason": "the job does not run", "samples_ms": []}
    assert client.get("/jobs/flights").json() == job


def test_a_program_is_loaded_with_the_changed_settings_and_shows_its_states(
    client: httpx.Client, job: dict[str, Any], answers: dict[str, Any]
) -> None:
    body = {"artifact_id": job["artifact_id"], "parameters": {"a": "b"}, "secrets": ["ORDERS"], "parallelism": 3}
    plan = client.post("/jobs/flights/plan", json=body).json()
    assert (plan["compatible"], plan["requires_allow_non_restored_state"]) == (True, False)
    [operator] = plan["operators"]
    assert (operator["uid"], operator["fate"]) == ("totals", "new")
    assert [(each["name"], each["fate"], each["ttl_ms"]) for each in operator["states"]] == [("total", "new", 1000)]
    assert [(each["uid"], each["kind"], each["fate"]) for each in plan["sources"]] == [("source", "kafka", "new")]
    assert [(each["uid"], each["kind"], each["fate"]) for each in plan["sinks"]] == [("out", "FileSink", "new")]
    assert answers["content"] == b"print(1)\n"
    assert (answers["question"].parameters, answers["question"].parallelism) == ({"a": "b"}, 3)
    assert answers["secrets"] == ["ORDERS"]


@pytest.mark.usefixtures("job")
def test_a_takeover_is_refused_where_a_plan_says_so_and_a_program_that_was_just_planned_is_not_loaded_again(
    context: Context, client: httpx.Client, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(**parameters: str) -> str | None:
        with context.sessions() as session:
            before = Specification.of(revisions.current(session, require_job(session, "flights")))
        wanted, user = changed(before, {"parameters": parameters}), Principal("1", "admin", Role.ADMIN)
        try:
            plans.require_takeover(context, user, "flights", wanted, allow_non_restored_state=False)
        except ChangeIncompatibleError as error:
            return str(error)
        return None

    client.post("/jobs/flights/plan", json={"parameters": {"a": "1"}})
    planned = answers.pop("question")
    assert judge(a="1") is None
    assert "question" not in answers, "what a plan has loaded is not loaded again"
    lost = PlanAnswer.model_validate(client.post("/jobs/flights/plan", json={}).json())
    monkeypatch.setattr(
        plans, "_answer", lambda *_: lost.model_copy(update={"requires_allow_non_restored_state": True})
    )
    assert "would be lost" in str(judge(a="2"))
    assert (answers["question"].parameters, planned.parameters) == ({"a": "2"}, {"a": "1"})
    assert judge() is None, "nothing that says which state there is changes"
    failed = FailureAnswer(code="X", message="no")
    monkeypatch.setattr(plans, "_answer", lambda *_: lost.model_copy(update={"compatible": False, "failure": failed}))
    assert judge(a="3") is None, "what the program declares is not known"


def test_a_failure_of_the_program_is_shown_with_secrets_masked(
    client: httpx.Client, job: dict[str, Any], answers: dict[str, Any]
) -> None:
    failure = {"code": "JOB_SCRIPT_FAILED", "message": "it has of-the-orders", "traceback": "of-the-orders"}
    answers["answer"] = ProgramAnswer(failure=failure)
    plan = client.post("/jobs/flights/plan", json={"artifact_id": job["artifact_id"], "secrets": ["ORDERS"]}).json()
    assert (plan["compatible"], plan["program_loaded"]) == (False, False)
    assert (plan["failure"]["message"], plan["failure"]["traceback"]) == ("it has *****", "*****")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"parallelism": 17}, "PARALLELISM_OUT_OF_RANGE"),
        ({"artifact_id": "none"}, "ARTIFACT_NOT_FOUND"),
        ({"secrets": ["NOBODYS"]}, "SECRET_UNKNOWN"),
        ({"spark_conf": {"spark.driver.extraJavaOptions": "-x"}}, "SPARK_CONF_NOT_ALLOWED"),
        ({"unknown": 1}, "REQUEST_INVALID"),
    ],
)
@pytest.mark.usefixtures("job")
def test_what_a_job_may_not_have_is_refused_before_anything_is_loaded(
    client: httpx.Client, body: dict[str, Any], code: str
) -> None:
    assert client.post("/jobs/flights/plan", json=body).json()["code"] == code


def test_programs_that_load_forever_hold_up_no_other_request(
    client: httpx.Client, job: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def load(*_: Any, **__: Any) -> ProgramAnswer:
        assert ends.wait(60)
        return ProgramAnswer(DECLARATION)

    monkeypatch.setattr(ProgramLoading, "load", load)
    body = {"artifact_id": job["artifact_id"]}
    wanted = 50  # more than the control plane has threads for requests
    with ThreadPoolExecutor(wanted) as pool:
        sent = [pool.submit(client.post, "/jobs/flights/plan", json=body, timeout=60) for _ in range(wanted)]
        try:
            refused = [one.result() for one in as_completed_some(sent, wanted - PLANS_OF_USER_MAX)]
            assert client.get("/jobs/flights", timeout=20).status_code == 200
        finally:
            ends.set()
    assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(429, "TOO_MANY_IN_FLIGHT")}
    refusals = wanted - PLANS_OF_USER_MAX
    assert sorted(one.result().status_code for one in sent) == [200] * PLANS_OF_USER_MAX + [429] * refusals


def as_completed_some(sent: list[Future[Any]], count: int) -> list[Future[Any]]:
    return list(islice(as_completed(sent, timeout=30), count))
