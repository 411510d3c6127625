"""Each command sends the request that its options say, and prints the answer that it gets."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, Any, cast

import httpx
import pytest

from keyscale.api.cli import checkpoints, job_wait, jobs, operations
from keyscale.api.jobs.setting_routes import list_settings
from keyscale.client import sender
from keyscale.metrics import BATCH_PARTS
from tests.support.control_plane.command_line import CommandAnswer, done, run

if TYPE_CHECKING:
    from pathlib import Path

STATUS: dict[str, Any] = {
    "state": "RUNNING",
    "desired": "RUNNING",
    "conditions": [{"type": "RUNNING", "status": "TRUE", "reason": "DRIVER_RUNS", "message": "it runs", "since_ms": 1}],
    "failure": None,
    "health": {"level": "OK", "score": 100, "reasons": []},
    "restarts": 0,
    "started_at_ms": 1,
    "latest_checkpoint": None,
    "change_id": None,
    "attempt": {"metrics": {"waits_for_input": True, "input_batches": 0}},
}
JOB: dict[str, Any] = {
    "id": "0a",
    "name": "flights",
    "revision": 7,
    "labels": {"team": "a"},
    "created_at_ms": 1,
    "spec": {"parallelism": 2},
    "status": STATUS,
    "metrics": {"input_rate": 2.0},
}
PHASES = [{"phase": "SAVEPOINT", "started_at_ms": 1, "ended_at_ms": 3, "duration_ms": 2}]
CHANGE = {
    "id": "c",
    "kind": "UPGRADE",
    "status": "COMPLETED",
    "phases": PHASES,
    "steps": [],
    "not_live": None,
    "failure": None,
    "from_revision": 7,
    "to_revision": 8,
    "from_parallelism": 2,
    "to_parallelism": 4,
    "duration_ms": 3000,
    "downtime_ms": 40,
}
UPDATED = {**CHANGE, "phases": []}
OPERATION = {
    "id": "o",
    "job_id": "0a",
    "kind": "STOP",
    "status": "COMPLETED",
    "phases": [],
    "steps": [],
    "not_live": None,
    "requested_at_ms": 1,
    "ended_at_ms": 2,
    "result": None,
    "failure": None,
}
LIST: dict[str, Any] = {
    "next": None,
    "operations": [],
    "savepoints": [],
    "artifacts": [],
    "operators": [],
    "revisions": [],
    "jobs": [],
}
VERIFIED = {"ended_at_ms": 5, "restorable": True, "problems": []}


def in_state(state: str, **status: Any) -> dict[str, Any]:
    return {**JOB, "status": {**STATUS, "state": state, **status}}


class ControlPlane:
    """Answers requests as a control plane whose jobs run, and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[Any, ...]] = []
        self.answers: dict[str, list[Any]] = {}

    def answer(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer the-token"
        path = request.url.raw_path.decode()
        body = json.loads(request.content) if request.headers.get("content-type") == "application/json" else None
        match = request.headers.get("if-match")
        self.requests.append((request.method, path, *([] if body is None else [body]), *([match] if match else [])))
        key = f"{request.method} {path}"
        given = self.answers.get(key)
        if given is None:
            wanted = key.partition("?")[0]
            answer = next((usual for form, usual in USUAL if re.fullmatch(form, wanted)), JOB)
        else:
            answer = given.pop(0) if len(given) > 1 else given[0]
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(204) if answer is None else httpx.Response(200, json=answer)


REVISION: dict[str, Any] = {
    "number": 2,
    "is_current": False,
    "artifact_name": "flights.py",
    "artifact_version": 3,
    "created_at_ms": 1,
    "created_by": "ann",
    "operation": {"status": "ROLLED_BACK"},
    "message": "count delays",
    "spec": {"parallelism": 4},
}
SUBSCRIPTION = {"id": "u", "secret": "whsec_x", "kinds": ["JOB_FAILED"], "selector": None}
DELIVERY = {"id": "msg_1", "subscription_id": "u", "status": "DELIVERED", "problem": None}
USUAL: list[tuple[str, Any]] = [
    (r"DELETE /v1/(jobs|artifacts|tokens|subscriptions)/\w+", None),
    (r"PATCH /v1/jobs/\w+", UPDATED),
    (r"POST /v1/jobs/\w+/rollback", UPDATED),
    (
        r"POST /v1/jobs/\w+/(start|stop|drain|cancel|restart|savepoint|checkpoint)",
        {**OPERATION, "status": "IN_PROGRESS"},
    ),
    (r"POST /v1/operations/c/(cancel|approve)", CHANGE),
    (r"GET /v1/operations/o", OPERATION),
    (r"GET /v1/operations/c", CHANGE),
    (r"POST /v1/jobs/\w+/rescale", {**CHANGE, "status": "IN_PROGRESS"}),
    (r"\w+ /v1/jobs/\w+/checkpoints/6/(verify|verification)", VERIFIED),
    (r"GET /v1/jobs/\w+/revisions/2/diff", {"differences": [{"path": "parallelism", "before": 2, "after": 4}]}),
    (r"GET /v1/jobs/\w+/revisions/2", REVISION),
    (r"GET /v1/jobs/\w+/savepoints/s", {"savepoint_id": "s", "checkpoint_id": 6}),
    (r"GET /v1/jobs/\w+/(operations|revisions|savepoints|checkpoints/6/compare)", LIST),
    (r"GET /v1/artifacts", LIST),
    (
        r"POST /v1/artifacts/\w+/check",
        {"valid": True, "failure": None, "operators": [], "sources": [], "sinks": []},
    ),
    (r"GET /v1/jobs/\w+/checkpoints", {"history": []}),
    (r"GET /v1/jobs/\w+/logs", {"truncated": False, "text": "a line\n", "size_bytes": 7}),
    (r"GET /v1(/jobs/\w+)?/events", {"events": [{"kind": "JOB_FAILED"}]}),
    (r"GET /v1/subscriptions", {"subscriptions": [SUBSCRIPTION]}),
    (r"GET /v1/subscriptions/\w+/deliveries", {"deliveries": [DELIVERY]}),
    (r"POST /v1/subscriptions/\w+/test", {**DELIVERY, "status": "PENDING"}),
    (r"\w+ /v1/subscriptions(/\w+)?", SUBSCRIPTION),
    (r"GET /v1/tokens", {"tokens": []}),
    (r"POST /v1/tokens", {"token": "new"}),
    (r"\w+ /v1/secrets(/\w+/labels)?", {"secrets": [], "labels": {"team": "a"}, "is_set": True}),
    (r"GET /v1/jobs", {"jobs": [JOB], "next": None}),
    (
        r"GET /v1/jobs/\w+/state(-history)?/\w+(/\w+)?",
        {"batch_id": 7, "source_positions": {}, "key": {}, "key_group": 0, "states": [], "changes": []},
    ),
    (r"GET /v1/settings", list_settings(cast("Any", None)).model_dump(mode="json")),
]
"""The answers of a control plane, by the request; any other is about a job."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    control_plane = ControlPlane()
    monkeypatch.setattr(sender, "_proving", lambda _: httpx.MockTransport(control_plane.answer))
    monkeypatch.setattr(sender, "_trusted", lambda _: False)  # to read the certificates takes most of a command's time
    for module in (checkpoints, job_wait, operations):
        monkeypatch.setattr(module, "POLL_S", 0)
    monkeypatch.setattr(jobs, "SEARCH_RETRY_S", 0)
    return control_plane


def keyscale(*arguments: str) -> CommandAnswer:
    return run("--url", "http://127.0.0.1:9", "--token", "the-token", *arguments)


START = {"skip_lost_records": False, "reset_time": False}
UPDATE = {"upgrade_mode": "SAVEPOINT", "allow_non_restored_state": False, "plan_first": True}
ROLLBACK = {"revision": 3, "state": "SAVEPOINT", "allow_non_restored_state": False, "plan_first": True}
FOUR = {"spec": {"parallelism": 4}}
LATEST = {"restore_from": {"latest": True, "job": "other"}}
GET_JOB = ("GET", "/v1/jobs/flights")


@pytest.mark.parametrize(
    ("command", "requests"),
    [
        ("jobs show flights", [GET_JOB]),
        ("jobs show a/b", [("GET", "/v1/jobs/a%2Fb")]),
        ("jobs start flights", [("POST", "/v1/jobs/flights/start", START)]),
        (
            "jobs start flights --reset-time -p 3",
            [("POST", "/v1/jobs/flights/start", {**START, "reset_time": True, "parallelism": 3})],
        ),
        (
            "jobs start flights --skip-lost-records",
            [("POST", "/v1/jobs/flights/start", {**START, "skip_lost_records": True})],
        ),
        ("jobs start flights --from-job other", [("POST", "/v1/jobs/flights/start", {**START, **LATEST})]),
        ("jobs start flights --wait", [("POST", "/v1/jobs/flights/start", START), GET_JOB]),
        ("jobs stop flights --no-wait", [("POST", "/v1/jobs/flights/stop", {})]),
        ("jobs stop flights --drain --no-wait", [("POST", "/v1/jobs/flights/drain", {})]),
        ("jobs drain flights --no-wait", [("POST", "/v1/jobs/flights/drain", {})]),
        ("jobs restart flights", [("POST", "/v1/jobs/flights/restart", {}), ("GET", "/v1/operations/o")]),
        ("operations list flights", [("GET", "/v1/jobs/flights/operations")]),
        (
            "operations list flights --kind rescale --kind UPGRADE --status failed",
            [("GET", "/v1/jobs/flights/operations?kind=RESCALE&kind=UPGRADE&status=FAILED")],
        ),
        (
            "checkpoints list flights --status failed --status COMPLETED",
            [("GET", "/v1/jobs/flights/checkpoints?status=FAILED&status=COMPLETED")],
        ),
        ("operations show o", [("GET", "/v1/operations/o")]),
        ("operations watch c", [("GET", "/v1/operations/c")] * 2),
        ("operations cancel c", [("POST", "/v1/operations/c/cancel", {})]),
        ("operations approve c", [("POST", "/v1/operations/c/approve", {}), ("GET", "/v1/operations/c")]),
        ("jobs wait flights", [GET_JOB]),
        ("jobs cancel flights --no-wait", [("POST", "/v1/jobs/flights/cancel", {})]),
        ("jobs delete flights", [("DELETE", "/v1/jobs/flights?keep_objects=false")]),
        ("jobs delete flights --keep-objects", [("DELETE", "/v1/jobs/flights?keep_objects=true")]),
        (
            "jobs update flights -p 4",
            [GET_JOB, ("PATCH", "/v1/jobs/flights", {**UPDATE, **FOUR}, '"7"'), GET_JOB],
        ),
        (
            (
                "jobs update flights --upgrade-mode last-state --last-state-age-ms-max 5 --allow-non-restored-state"
                " --no-plan-first --message why"
            ),
            [
                GET_JOB,
                (
                    "PATCH",
                    "/v1/jobs/flights",
                    {
                        "spec": {},
                        "upgrade_mode": "LAST_STATE",
                        "last_state_age_ms_max": 5,
                        "allow_non_restored_state": True,
                        "plan_first": False,
                        "message": "why",
                    },
                    '"7"',
                ),
                GET_JOB,
            ],
        ),
        ("jobs rollback flights 3", [("POST", "/v1/jobs/flights/rollback", ROLLBACK), GET_JOB]),
        (
            "jobs rollback flights 3 --state current",
            [("POST", "/v1/jobs/flights/rollback", {**ROLLBACK, "state": "CURRENT"}), GET_JOB],
        ),
        ("jobs clone flights new", [("POST", "/v1/jobs/flights/clone", {"name": "new", "start": False, "spec": {}})]),
        (
            "jobs clone flights new --start --wait --from-job other -p 4",
            [
                (
                    "POST",
                    "/v1/jobs/flights/clone",
                    {"name": "new", "start": True, **FOUR, **LATEST},
                ),
                ("GET", "/v1/jobs/0a"),
            ],
        ),
        ("revisions list flights", [("GET", "/v1/jobs/flights/revisions")]),
        ("revisions show flights 2", [("GET", "/v1/jobs/flights/revisions/2")]),
        ("revisions diff flights 2 5", [("GET", "/v1/jobs/flights/revisions/2/diff?to=5")]),
        ("checkpoints list flights", [("GET", "/v1/jobs/flights/checkpoints")]),
        ("checkpoints trigger flights --no-wait", [("POST", "/v1/jobs/flights/checkpoint", {})]),
        ("checkpoints config flights", [("GET", "/v1/jobs/flights/checkpoints/config")]),
        ("checkpoints delete flights 6", [("DELETE", "/v1/jobs/flights/checkpoints/6?dry_run=false")]),
        ("checkpoints delete flights 6 --dry-run", [("DELETE", "/v1/jobs/flights/checkpoints/6?dry_run=true")]),
        ("checkpoints verify flights 6", [("POST", "/v1/jobs/flights/checkpoints/6/verify", {"hashes": False})]),
        (
            "checkpoints verify flights 6 --hashes",
            [("POST", "/v1/jobs/flights/checkpoints/6/verify", {"hashes": True})],
        ),
        ("checkpoints compare flights 6 8", [("GET", "/v1/jobs/flights/checkpoints/6/compare?to=8")]),
        (
            "savepoints trigger flights --id s --no-wait",
            [("POST", "/v1/jobs/flights/savepoint", {"id": "s"})],
        ),
        ("savepoints list flights", [("GET", "/v1/jobs/flights/savepoints")]),
        ("savepoints delete flights s", [("DELETE", "/v1/jobs/flights/savepoints/s?dry_run=false")]),
        (
            "savepoints verify flights s --hashes",
            [
                ("GET", "/v1/jobs/flights/savepoints/s"),
                ("POST", "/v1/jobs/flights/checkpoints/6/verify", {"hashes": True}),
            ],
        ),
        ("rescale flights 4 --no-wait", [("POST", "/v1/jobs/flights/rescale", {"parallelism": 4})]),
        (
            "rescale flights 4",
            [("POST", "/v1/jobs/flights/rescale", {"parallelism": 4}), ("GET", "/v1/operations/c")],
        ),
        ("logs flights", [("GET", "/v1/jobs/flights/logs?tail_bytes=65536"), GET_JOB]),
        ("logs flights --attempt 3 --tail-bytes 9", [("GET", "/v1/jobs/flights/logs?tail_bytes=9&attempt=3"), GET_JOB]),
        ("events", [("GET", "/v1/events?limit=100")]),
        (
            "events flights --kind job_failed --kind X --actor ann --limit 9",
            [("GET", "/v1/jobs/flights/events?actor=ann&limit=9&kind=JOB_FAILED&kind=X")],
        ),
        (
            "events --since 1970-01-01T00:01 --until 1970-01-01T00:02",
            [("GET", "/v1/events?from_ms=60000&to_ms=120000&limit=100")],
        ),
        ("artifacts list", [("GET", "/v1/artifacts")]),
        ("artifacts delete a", [("DELETE", "/v1/artifacts/a")]),
        (
            "artifacts check --artifact a -p 2 -P input=/in --secret ORDERS --set max_parallelism=64",
            [
                ("GET", "/v1/settings"),
                (
                    "POST",
                    "/v1/artifacts/a/check",
                    {"max_parallelism": 64, "parallelism": 2, "secrets": ["ORDERS"], "parameters": {"input": "/in"}},
                ),
            ],
        ),
        ("subscriptions list", [("GET", "/v1/subscriptions")]),
        (
            "subscriptions create https://a.example/x --kind job_failed --job flights --label team=a",
            [
                (
                    "POST",
                    "/v1/subscriptions",
                    {
                        "channel": "WEBHOOK",
                        "target": "https://a.example/x",
                        "kinds": ["JOB_FAILED"],
                        "selector": {"jobs": ["flights"], "labels": {"team": "a"}},
                    },
                )
            ],
        ),
        (
            "subscriptions create ops@example.com --channel mail",
            [("POST", "/v1/subscriptions", {"channel": "MAIL", "target": "ops@example.com"})],
        ),
        (
            "subscriptions show u --limit 5",
            [("GET", "/v1/subscriptions/u"), ("GET", "/v1/subscriptions/u/deliveries?limit=5")],
        ),
        ("subscriptions test u", [("POST", "/v1/subscriptions/u/test", {}), ("GET", "/v1/subscriptions/u/deliveries")]),
        ("subscriptions delete u", [("DELETE", "/v1/subscriptions/u")]),
        ("tokens list", [("GET", "/v1/tokens")]),
        ("tokens revoke t", [("DELETE", "/v1/tokens/t")]),
        ("tokens create ci --role viewer", [("POST", "/v1/tokens", {"name": "ci", "role": "VIEWER"})]),
        (
            "tokens create ci --role operator --job flights --label team=a --days 2",
            [
                (
                    "POST",
                    "/v1/tokens",
                    {
                        "name": "ci",
                        "role": "OPERATOR",
                        "scope": {"jobs": ["flights"], "labels": {"team": "a"}},
                        "lifetime_ms": 172_800_000,
                    },
                )
            ],
        ),
        (
            "tokens create ci --role admin --never-expires",
            [("POST", "/v1/tokens", {"name": "ci", "role": "ADMIN", "lifetime_ms": None})],
        ),
        (
            "state get flights --operator count --key ada --at batch-7 --after 9",
            [("GET", "/v1/jobs/flights/state/count?key=ada&at=batch-7&after=9")],
        ),
        (
            "state get flights --operator count --state clicks --key ada",
            [("GET", "/v1/jobs/flights/state/count/clicks?key=ada&at=latest")],
        ),
        (
            "state history flights --operator count --state clicks --key ada",
            [("GET", "/v1/jobs/flights/state-history/count?key=ada&state=clicks")],
        ),
        ("jobs settings", [("GET", "/v1/settings")]),
        ("secrets list", [("GET", "/v1/secrets")]),
        ("secrets label ORDERS --label team=a", [("PUT", "/v1/secrets/ORDERS/labels", {"labels": {"team": "a"}})]),
        ("secrets label ORDERS --no-labels", [("PUT", "/v1/secrets/ORDERS/labels", {"labels": {}})]),
    ],
)
def test_a_command_sends_what_its_options_say(
    asked: ControlPlane, command: str, requests: list[tuple[Any, ...]]
) -> None:
    done(keyscale(*command.split(), "--json"))
    assert asked.requests == requests
    done(keyscale(*command.split()))
    assert asked.requests == requests * 2, "with --json it is the same request"


@pytest.mark.parametrize(
    "command",
    [
        "jobs create flights",
        "jobs create flights --artifact a --file f.py",
        "jobs create flights --artifact a --wait",
        "jobs clone flights new --wait",
        "jobs start flights --from 3 --as-of 09:00",
        "artifacts upload",
        "tokens create ci --role viewer --days 2 --never-expires",
        "secrets label ORDERS",
        "secrets label ORDERS --label a=b --no-labels",
        "logs flights --executors --follow",
        "logs flights --executors --search x",
        "logs flights --executors --attempt 2",
    ],
)
def test_options_that_do_not_go_together_are_refused_before_a_request(asked: ControlPlane, command: str) -> None:
    answer = keyscale(*command.split())
    assert answer.exit_code != 0
    assert "error" in answer.stderr.lower()
    assert asked.requests == []


def test_a_new_job_gets_each_option_in_its_own_field(asked: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print(1)\n")
    asked.answers["POST /v1/artifacts"] = [{"id": "up"}]
    options = (
        "-p 3 --set max_parallelism=16 --set hash_id=java --label team=a --parameter in=/in --secret KEY"
        " --set spark_conf.a.b=c --set checkpoints.interval_ms=500 --set restart.type=fixed-delay"
        " --library package:kafka --allow-non-restored-state --start --wait"
    )
    done(keyscale("jobs", "create", "flights", "--file", str(tmp_path / "job.py"), *options.split()))
    assert [request[:2] for request in asked.requests] == [
        ("GET", "/v1/settings"),
        ("POST", "/v1/artifacts"),
        ("POST", "/v1/jobs"),
        ("POST", "/v1/jobs/0a/start"),
        ("GET", "/v1/jobs/0a"),
    ]
    assert asked.requests[2][2] == {
        "name": "flights",
        "labels": {"team": "a"},
        "allow_non_restored_state": True,
        "spec": {
            "artifact_id": "up",
            "libraries": ["package:kafka"],
            "parallelism": 3,
            "max_parallelism": 16,
            "hash_id": "java",
            "parameters": {"in": "/in"},
            "secrets": ["KEY"],
            "spark_conf": {"a.b": "c"},
            "checkpoints": {"interval_ms": 500},
            "restart": {"type": "fixed-delay"},
        },
    }


def test_what_a_new_job_does_not_choose_is_left_to_the_control_plane(asked: ControlPlane) -> None:
    done(keyscale("jobs", "create", "flights", "--artifact", "a"))
    [(_, path, body)] = asked.requests
    assert (path, body) == ("/v1/jobs", {"name": "flights", "labels": {}, "spec": {"artifact_id": "a"}})


@pytest.mark.parametrize(
    ("options", "is_listed"),
    [
        ("", True),
        ("--status running", True),
        ("--status FAILED --status RUNNING --label team=a", True),
        ("--status FAILED", False),
        ("--label team=b", False),
        ("--label team=a --label stage=live", False),
    ],
)
def test_jobs_are_listed_by_any_status_and_all_labels(asked: ControlPlane, options: str, is_listed: bool) -> None:
    answer = done(keyscale("jobs", "list", "--json", *options.split())).json
    assert bool(answer["jobs"]) is is_listed
    assert asked.requests == [("GET", "/v1/jobs")]


def test_a_job_is_shown_with_its_failure_first_and_briefly_in_a_few_lines(asked: ControlPlane) -> None:
    failure = {"code": "JOB_FUNCTION_FAILED", "message": "it raised", "advice": "Correct the function."}
    asked.answers["GET /v1/jobs/flights"] = [in_state("FAILED", failure=failure)]
    shown = keyscale("jobs", "show", "flights").stdout
    assert shown.startswith("JOB_FUNCTION_FAILED: it raised\nCorrect the function.\n\n")
    assert all(re.search(rf"^{name} ", shown, re.MULTILINE) for name in ("state", "spec", "metrics"))
    brief = keyscale("jobs", "show", "flights", "--brief").stdout
    assert brief.startswith("JOB_FUNCTION_FAILED: it raised\nCorrect the function.\n\n")
    names = [line.split()[0] for line in brief.splitlines()[3:]]
    assert names == [name for name in jobs.BRIEF if name != "failure"]


def test_the_last_batches_are_shown_with_their_parts_and_the_newest_first(asked: ControlPlane) -> None:
    parts = dict.fromkeys((part.name for part in BATCH_PARTS), 0)
    found = [
        {"batch_id": 7, "at_ms": 1, "input_records": 900, **parts, "function_ms": 1600},
        {"batch_id": 8, "at_ms": 2, "input_records": 20, **parts, "spark_ms": 250, "publish_ms": 250},
    ]
    asked.answers["GET /v1/jobs/flights"] = [in_state("RUNNING", attempt={"metrics": {"recent_batches": found}})] * 2
    rows = [
        re.split(r"\s{2,}", line.strip()) for line in done(keyscale("jobs", "batches", "flights")).stdout.splitlines()
    ]
    none = "0 ms"
    assert [row[0] for row in rows[1:]] == ["8", "7"]
    assert rows[1][2:] == ["20", "500 ms", none, none, "250 ms", none, none, none, none, none, "250 ms"]
    assert keyscale("jobs", "batches", "flights", "--json").json == found


def test_a_job_that_never_ran_has_no_batches(asked: ControlPlane) -> None:
    asked.answers["GET /v1/jobs/flights"] = [in_state("CREATED", attempt=None)]
    assert done(keyscale("jobs", "batches", "flights")).stdout.split()[0] == "BATCH"


def test_a_bundle_is_written_to_the_file_that_the_option_names(asked: ControlPlane, tmp_path: Path) -> None:
    asked.answers["GET /v1/jobs/flights/bundle"] = [httpx.Response(200, content=b"zip")]
    done(keyscale("jobs", "bundle", "flights", "-o", str(tmp_path / "b.zip")))
    assert (tmp_path / "b.zip").read_bytes() == b"zip"
    refused = keyscale("jobs", "bundle", "flights", "-o", str(tmp_path / "none" / "b.zip"))
    assert (refused.exit_code, "cannot be written" in refused.stderr) == (1, True)


LOOKED = {
    "id": "d",
    "job_id": "0a",
    "attempt": 1,
    "kind": "PROFILE",
    "status": "COMPLETED",
    "requested_at_ms": 1,
    "requested_by": "ann",
    "ended_at_ms": 2,
    "failure": None,
    "parts": [{"name": "worker 7", "text": "run;count 3\nrun 1\n"}, {"name": "worker 8", "text": "run 2\n"}],
}


def test_a_profile_names_the_processes_without_stacks_beside_it(asked: ControlPlane) -> None:
    others = [{"name": "worker 9", "text": ""}, {"name": "executor 1 on away", "text": "Not asked."}]
    asked.answers["POST /v1/jobs/flights/diagnostics"] = [{**LOOKED, "parts": []}]
    asked.answers["GET /v1/jobs/flights/diagnostics/d"] = [{**LOOKED, "parts": [*LOOKED["parts"], *others]}]
    shown = done(keyscale("jobs", "profile", "flights"))
    assert shown.stdout == "worker 7;run;count 3\nworker 7;run 1\nworker 8;run 2\n"
    assert shown.stderr.splitlines()[-2:] == ["worker 9: no samples", "executor 1 on away: Not asked."]


@pytest.mark.parametrize(
    ("command", "wanted", "shown"),
    [
        (
            "jobs threads flights",
            {"kind": "THREAD_DUMP"},
            "=== worker 7 ===\nrun;count 3\nrun 1\n\n=== worker 8 ===\nrun 2\n",
        ),
        (
            "jobs profile flights --seconds 3",
            {"kind": "PROFILE", "duration_ms": 3000},
            "worker 7;run;count 3\nworker 7;run 1\nworker 8;run 2\n",
        ),
        (
            "jobs sample flights count --rows 4 --mask",
            {"kind": "SAMPLE", "operator_uid": "count", "rows": 4, "duration_ms": 10_000, "with_values": False},
            "=== worker 7 ===",
        ),
        ("logs flights --executors", {"kind": "EXECUTOR_LOGS"}, "=== worker 7 ==="),
    ],
)
def test_a_look_into_a_job_is_waited_for_and_shown(
    asked: ControlPlane, tmp_path: Path, command: str, wanted: dict[str, Any], shown: str
) -> None:
    asked.answers["POST /v1/jobs/flights/diagnostics"] = [{**LOOKED, "status": "IN_PROGRESS", "parts": []}]
    asked.answers["GET /v1/jobs/flights/diagnostics/d"] = [LOOKED]
    assert done(keyscale(*command.split())).stdout.startswith(shown)
    (_, _, sent), _ = asked.requests
    assert {name: value for name, value in sent.items() if name != "id"} == wanted
    assert done(keyscale(*command.split(), "--json")).json == LOOKED
    if command.startswith("jobs"):
        done(keyscale(*command.split(), "-o", str(tmp_path / "look.txt")))
        assert (tmp_path / "look.txt").read_text().startswith(shown)


def test_a_look_that_fails_says_why(asked: ControlPlane) -> None:
    failure = {"code": "C", "message": "the job has no operator nope; it has count", "advice": "Request it again."}
    asked.answers["POST /v1/jobs/flights/diagnostics"] = [{**LOOKED, "status": "IN_PROGRESS", "parts": []}]
    asked.answers["GET /v1/jobs/flights/diagnostics/d"] = [{**LOOKED, "status": "FAILED", "failure": failure}]
    refused = keyscale("jobs", "sample", "flights", "nope")
    assert refused.exit_code == 1
    assert "the job has no operator nope; it has count\nRequest it again." in refused.stderr


def test_a_revision_is_shown_with_its_program_its_outcome_and_its_specification(asked: ControlPlane) -> None:
    shown = done(keyscale("revisions", "show", "flights", "2"))
    assert {"flights.py v3", "ROLLED_BACK", "count delays", "ann"} <= {
        line.partition(" ")[2].strip() for line in shown.stdout.splitlines()
    }
    assert '"parallelism": 4' in shown.stdout
    asked.answers["GET /v1/jobs/flights/revisions"] = [{**LIST, "revisions": [REVISION]}]
    listed = done(keyscale("revisions", "list", "flights")).stdout.splitlines()[1]
    assert listed.split()[:5] == ["2", "no", "flights.py", "v3", "4"]
    assert "ROLLED_BACK" in listed


@pytest.mark.parametrize(
    ("command", "request_", "noun"),
    [
        (
            "artifacts list --kind jar --kind WHEEL --name tools",
            "/v1/artifacts?kind=JAR&kind=WHEEL&name=tools",
            "artifacts",
        ),
        ("revisions list flights --by ann", "/v1/jobs/flights/revisions?created_by=ann", "revisions"),
        ("savepoints list flights --owner user", "/v1/jobs/flights/savepoints?owner=USER", "savepoints"),
        ("tokens list --role viewer", "/v1/tokens?role=VIEWER", "tokens"),
        ("subscriptions list --channel mail", "/v1/subscriptions?channel=MAIL", "subscriptions"),
    ],
)
def test_filters_of_lists_are_sent(asked: ControlPlane, command: str, request_: str, noun: str) -> None:
    asked.answers[f"GET {request_}"] = [{noun: [], "next": None}]
    done(keyscale(*command.split()))
    assert asked.requests == [("GET", request_)]


def test_all_parts_of_a_list_are_read(asked: ControlPlane) -> None:
    asked.answers["GET /v1/jobs"] = [{"jobs": [JOB], "next": "n"}]
    asked.answers["GET /v1/jobs?after=n"] = [{"jobs": [{**JOB, "id": "0b"}], "next": None}]
    answer = done(keyscale("jobs", "list", "--json")).json
    assert [job["id"] for job in answer["jobs"]] == ["0a", "0b"]
    assert answer["next"] is None


def test_a_stop_is_waited_for_by_its_operation(asked: ControlPlane) -> None:
    asked.answers["GET /v1/operations/o"] = [{**OPERATION, "status": "IN_PROGRESS"}, OPERATION]
    done(keyscale("jobs", "stop", "flights"))
    assert [path for _, path, *_ in asked.requests] == ["/v1/jobs/flights/stop", *["/v1/operations/o"] * 2]


@pytest.mark.parametrize(
    ("kind", "status", "shown"),
    [
        ("STOP", "COMPLETED", "no savepoint: the job slept, and its last checkpoint has all state"),
        ("CANCEL", "COMPLETED", "no savepoint: the next start continues from the latest checkpoint"),
        ("START", "COMPLETED", "-"),
        ("STOP", "CANCELLED", "-"),
    ],
)
def test_an_operation_without_a_result_says_what_happened_instead(
    asked: ControlPlane, kind: str, status: str, shown: str
) -> None:
    asked.answers["GET /v1/operations/o"] = [{**OPERATION, "kind": kind, "status": status}]
    lines = keyscale("operations", "watch", "o").stdout.splitlines()
    (result,) = (line for line in lines if line.startswith("result"))
    assert result.removeprefix("result").strip() == shown


@pytest.mark.usefixtures("asked")
def test_an_operation_that_is_not_waited_for_is_named() -> None:
    for verb in ("start", "stop", "drain", "cancel", "restart"):
        options = [] if verb == "start" else ["--no-wait"]
        assert done(keyscale("jobs", verb, "flights", *options)).stdout.strip() == "o"


def test_an_operation_is_waited_for_no_longer_than_its_limit(asked: ControlPlane) -> None:
    asked.answers["GET /v1/operations/o"] = [{**OPERATION, "status": "IN_PROGRESS"}]
    answer = keyscale("operations", "watch", "o", "--timeout", "0")
    assert answer.exit_code == 3, answer.stdout
    assert "after 0 s STOP is still IN_PROGRESS" in answer.stderr.replace("\n", " ")


def test_a_start_is_waited_for_no_longer_than_its_limit(asked: ControlPlane) -> None:
    asked.answers["GET /v1/jobs/flights"] = [in_state("SUBMITTING"), JOB]
    answer = keyscale("jobs", "start", "flights", "--wait", "--timeout", "0")
    assert answer.exit_code == 3, answer.stdout
    assert "SUBMITTING, not FINISHED or RUNNING" in answer.stderr


def failed(text: str) -> CommandAnswer:
    answer = keyscale(*text.split())
    assert answer.exit_code == 1, answer.stdout
    return answer


@pytest.mark.parametrize(
    ("command", "path", "answer", "shown"),
    [
        (
            "checkpoints trigger flights",
            "GET /v1/operations/o",
            {**OPERATION, "status": "FAILED", "failure": {"code": "X", "message": "no space"}},
            "no space",
        ),
        (
            "checkpoints verify flights 6",
            "POST /v1/jobs/flights/checkpoints/6/verify",
            {**VERIFIED, "restorable": False, "problems": ["a file is gone"]},
            "a file is gone",
        ),
        (
            "rescale flights 4",
            "GET /v1/operations/c",
            {**CHANGE, "status": "ROLLED_BACK", "failure": {"code": "X", "message": "it broke"}},
            "it broke",
        ),
        (
            "jobs show flights",
            "GET /v1/jobs/flights",
            httpx.Response(404, json={"code": "JOB_NOT_FOUND", "detail": "no job", "advice": "list them"}),
            "list them",
        ),
        ("jobs show flights", "GET /v1/jobs/flights", httpx.Response(502, text="<html>"), "502"),
        ("jobs show flights", "GET /v1/jobs/flights", httpx.Response(200, text="<html>"), "JSON"),
    ],
)
def test_what_has_failed_is_said_with_its_reason(
    asked: ControlPlane, command: str, path: str, answer: Any, shown: str
) -> None:
    asked.answers[path] = [answer]
    assert shown in failed(command).stderr.replace("\n", " ")


def test_a_restart_says_that_a_new_driver_runs_the_same_revision(asked: ControlPlane) -> None:
    asked.answers["POST /v1/jobs/flights/restart"] = [{**CHANGE, "kind": "RESTART", "to_revision": 7}]
    asked.answers["GET /v1/operations/c"] = [{**CHANGE, "kind": "RESTART", "to_revision": 7}]
    assert "COMPLETED: a new driver of revision 7 in" in done(keyscale("jobs", "restart", "flights")).stdout


def test_a_rescale_says_once_and_at_once_why_a_new_driver_carries_it_out(asked: ControlPlane) -> None:
    change = {**CHANGE, "kind": "RESCALE", "not_live": {"code": "RESCALE_NOT_LIVE", "message": "4 task slots"}}
    asked.answers["POST /v1/jobs/flights/rescale"] = [{**change, "status": "IN_PROGRESS"}]
    asked.answers["GET /v1/operations/c"] = [{**change, "status": "IN_PROGRESS", "phases": []}, change]
    shown = done(keyscale("rescale", "flights", "4")).stdout.splitlines()
    assert shown[0] == "  by a new driver: 4 task slots"
    assert [line.split()[0] for line in shown] == ["by", "SAVEPOINT", "COMPLETED:"]


def test_the_time_of_catching_up_is_shown_behind_the_downtime(asked: ControlPlane) -> None:
    steps = [{"name": "FIRST_BATCH", "duration_ms": 40}, {"name": "CAUGHT_UP", "duration_ms": 1127}]
    change = {**CHANGE, "kind": "RESCALE", "steps": steps}
    asked.answers["POST /v1/jobs/flights/rescale"] = [change]
    asked.answers["GET /v1/operations/c"] = [change]
    shown = [line.split() for line in done(keyscale("rescale", "flights", "4")).stdout.splitlines()]
    assert shown[-3:-1] == [["downtime:", "FIRST_BATCH", "40", "ms"], ["then:", "CAUGHT_UP", "1,127", "ms"]]


def test_a_change_is_followed_phase_by_phase_to_its_end(asked: ControlPlane) -> None:
    asked.answers["PATCH /v1/jobs/flights"] = [{**CHANGE, "status": "IN_PROGRESS"}]
    going_on = {**CHANGE, "status": "IN_PROGRESS", "phases": [{**PHASES[0], "ended_at_ms": None}]}
    verified = {"phase": "VERIFY", "started_at_ms": 3, "ended_at_ms": 9, "duration_ms": 6}
    waits = {**verified, "ended_at_ms": None, "waits_for": {"code": "STORE_UNAVAILABLE", "message": "403 [x]"}}
    waiting = {**CHANGE, "status": "IN_PROGRESS", "phases": [*PHASES, waits]}
    asked.answers["GET /v1/operations/c"] = [
        going_on,
        {**CHANGE, "status": "IN_PROGRESS"},
        waiting,
        waiting,
        {**CHANGE, "phases": [*PHASES, verified]},
    ]
    shown = done(keyscale("jobs", "update", "flights", "-p", "4")).stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["SAVEPOINT", "waits", "VERIFY", "COMPLETED:"]
    assert "waits for the object store: 403 [x]" in shown
    assert "revision 7 -> 8" in shown
    assert done(keyscale("jobs", "update", "flights", "-p", "4", "--json")).json["status"] == "COMPLETED"
    asked.answers["GET /v1/operations/c"] = [
        {**CHANGE, "status": "FAILED", "failure": {"code": "X", "message": "m", "traceback": "T"}}
    ]
    assert "FAILED: X: m T" in failed("jobs update flights -p 4").stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("status", "shown"), [("RUNNING", "its driver follows it"), ("STOPPED", "its next start uses it")]
)
def test_a_change_of_settings_says_when_it_takes_effect(asked: ControlPlane, status: str, shown: str) -> None:
    asked.answers["GET /v1/jobs/flights"] = [in_state(status)]
    assert shown in done(keyscale("jobs", "update", "flights", "-p", "4")).stdout.replace("\n", " ")


def test_a_verification_is_waited_for(asked: ControlPlane) -> None:
    asked.answers["POST /v1/jobs/flights/checkpoints/6/verify"] = [{**VERIFIED, "ended_at_ms": None}]
    asked.answers["GET /v1/jobs/flights/checkpoints/6/verification"] = [{**VERIFIED, "ended_at_ms": None}, VERIFIED]
    assert done(keyscale("checkpoints", "verify", "flights", "6", "--json")).json["ended_at_ms"] == 5
    assert len(asked.requests) == 3


def test_the_whole_log_is_searched_part_by_part_and_again_when_too_many_search(asked: ControlPlane) -> None:
    path = "GET /v1/jobs/flights/logs?search=x&offset={}&attempt=2"
    busy = httpx.Response(429, json={"code": "TOO_MANY_IN_FLIGHT", "detail": "busy"})
    asked.answers[path.format(0)] = [busy, {"matches": [{"text": "x1"}], "next_offset": 8, "size_bytes": 12}]
    asked.answers[path.format(8)] = [{"matches": [{"text": "x2"}], "next_offset": 12, "size_bytes": 12}]
    assert done(keyscale("logs", "flights", "--search", "x", "--attempt", "2")).stdout == "x1\nx2\n"
    asked.answers[path.format(8)] = [{"matches": [], "next_offset": 8, "size_bytes": 12}]
    assert done(keyscale("logs", "flights", "--search", "x", "--attempt", "2")).stdout == "x1\n"


def test_a_log_is_printed_with_the_jobs_failure_below_and_says_what_is_missing(asked: ControlPlane) -> None:
    asked.answers["GET /v1/jobs/flights"] = [in_state("FAILED", failure={"code": "X", "message": "it broke"})]
    log = {"truncated": True, "text": "a line\n", "size_bytes": 1 << 20}
    asked.answers["GET /v1/jobs/flights/logs?tail_bytes=65536"] = [log]
    answer = done(keyscale("logs", "flights"))
    assert answer.stdout.startswith("a line\n")
    assert "X: it broke" in answer.stdout
    assert "1.0 MiB" in answer.stderr


def test_events_of_a_deleted_job_are_found_by_its_id(asked: ControlPlane) -> None:
    gone = httpx.Response(404, json={"code": "JOB_NOT_FOUND", "detail": "no job"})
    asked.answers["GET /v1/jobs/old/events?limit=100"] = [gone]
    assert done(keyscale("events", "old", "--json")).json["events"][0]["kind"] == "JOB_FAILED"
    assert asked.requests[-1] == ("GET", "/v1/events?job=old&limit=100")
    asked.answers["GET /v1/events?job=old&limit=100"] = [{"events": []}]
    assert "JOB_NOT_FOUND" in failed("events old").stderr
    refused = httpx.Response(403, json={"code": "ROLE_TOO_LOW", "detail": "no"})
    asked.answers["GET /v1/jobs/old/events?limit=100"] = [refused]
    assert "ROLE_TOO_LOW" in failed("events old").stderr


def test_an_export_prints_all_parts_of_the_list_as_lines(asked: ControlPlane) -> None:
    first, second = ({"id": number, "message": 'a, "b"', "details": {"n": number}} for number in (2, 1))
    path = "GET /v1/events?limit=1000"
    for _ in range(2):
        asked.answers[path] = [{"events": [first], "next": "n"}]
        asked.answers[f"{path}&after=n"] = [{"events": [second], "next": None}]
    lines = done(keyscale("events", "--export", "ndjson")).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [first, second]
    lines = done(keyscale("events", "--export", "csv")).stdout.splitlines()
    assert lines == ["id,message,details", '2,"a, ""b""","{""n"": 2}"', '1,"a, ""b""","{""n"": 1}"']


@pytest.mark.parametrize(
    ("scope", "shown"),
    [
        (None, "every job"),
        ({"jobs": ["flights"], "labels": {"team": "a"}}, "flights, team=a"),
        ({"jobs": [], "labels": {}, "any_labels": ["a=b"]}, "a=b"),
        ({"jobs": [], "labels": {}, "any_labels": ["a=b", "c=d"]}, "one of a=b or c=d"),
    ],
)
def test_a_scope_is_shown_in_words(asked: ControlPlane, scope: Any, shown: str) -> None:
    asked.answers["GET /v1/whoami"] = [{"name": "ann", "role": "OPERATOR", "scope": scope}]
    assert shown in done(keyscale("whoami")).stdout
    assert done(keyscale("whoami", "--json")).json["scope"] == scope


@pytest.mark.usefixtures("asked")
def test_a_new_token_is_printed_alone() -> None:
    assert done(keyscale("tokens", "create", "ci", "--role", "viewer")).stdout == "new\n"


def test_a_test_message_that_is_not_delivered_fails_with_the_reason(asked: ControlPlane) -> None:
    waits = {**DELIVERY, "status": "PENDING"}
    refused = {**waits, "problem": "alerts.example.com answered 404"}
    asked.answers["GET /v1/subscriptions/u/deliveries"] = [{"deliveries": [waits]}, {"deliveries": [refused]}]
    assert "alerts.example.com answered 404" in keyscale("subscriptions", "test", "u").stdout
    assert keyscale("subscriptions", "test", "u").exit_code == 1


def test_the_target_of_a_subscription_is_read_from_standard_input(
    asked: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("https://a.example/hidden\n"))
    shown = done(keyscale("subscriptions", "create", "-", "--channel", "slack")).stdout
    assert asked.requests[0][2] == {"channel": "SLACK", "target": "https://a.example/hidden"}
    assert shown == "subscription u\nsecret whsec_x\n"


def test_the_libraries_that_are_files_are_uploaded_and_each_is_named_once(asked: ControlPlane, tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("x = 1\n")
    asked.answers["POST /v1/artifacts"] = [{"id": "up"}]
    arguments = ["--library", "f" * 32, "--library", "package:kafka", "--library", str(tmp_path / "helpers.py")]
    done(keyscale("jobs", "create", "flights", "--artifact", "a", *arguments, "--library", "f" * 32))
    assert [request[:2] for request in asked.requests] == [("POST", "/v1/artifacts"), ("POST", "/v1/jobs")]
    assert asked.requests[1][2]["spec"]["libraries"] == ["f" * 32, "package:kafka", "up"]
    assert "cannot be read" in failed("jobs create flights --file /none.py").stderr
