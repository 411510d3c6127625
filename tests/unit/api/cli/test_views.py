"""Each command shows the parts of an answer, with their units, and asks for them with what its options say."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from keyscale.api.cli import artifacts, operations, subscriptions
from keyscale.client import sender
from tests.support.control_plane.command_line import CommandAnswer, done, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Answers = dict[str, Any]
"""The answers of a control plane by request: JSON, bytes, or several of them, one after the other."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], list[Any]]:
    """Returns a function that sets the answers, and returns the list of requests."""

    def answering(answers: Answers) -> list[Any]:
        requests: list[Any] = []

        def answer(request: httpx.Request) -> httpx.Response:
            name = f"{request.method} {request.url.raw_path.decode()}"
            is_json = request.headers.get("content-type") == "application/json"
            requests.append((name, json.loads(request.content)) if is_json else name)
            given = answers[name]
            found = given.pop(0) if isinstance(given, list) else given
            return httpx.Response(200, content=found) if isinstance(found, bytes) else httpx.Response(200, json=found)

        monkeypatch.setattr(sender, "_proving", lambda _: httpx.MockTransport(answer))
        monkeypatch.setattr(sender, "_trusted", lambda _: False)
        return requests

    return answering


def keyscale(*arguments: str) -> CommandAnswer:
    return run("--url", "http://127.0.0.1:9", "--token", "the-token-of-a-user", *arguments)


def lines(answer: CommandAnswer) -> list[str]:
    """Returns what a command prints, with one space between words."""
    return [" ".join(line.split()) for line in done(answer).stdout.splitlines()]


EFFECT = {"capacity": 20.5, "utilization": 0.5, "work_ms": 3.0}
DECISION: dict[str, Any] = {
    "id": 9,
    "at_ms": 1,
    "confirmed_at_ms": 2,
    "verdict": "SCALE_UP",
    "parallelism": 2,
    "target": 4,
    "message": "too slow",
    "advice": None,
    "facts": {"lag_records": 7},
    "present": EFFECT,
    "expected": None,
    "measured": None,
    "operation_id": None,
    "outcome": None,
}
MOVE = {**DECISION, "id": 8, "message": "was slow", "operation_id": "o", "outcome": "KEPT", "measured": EFFECT}


def test_the_autoscaler_is_shown_with_its_decision_and_its_last_move(asked: Callable[[Answers], list[Any]]) -> None:
    answer = {"mode": "ACTIVE", "decision": DECISION, "last_move": MOVE}
    requests = asked({"GET /v1/jobs/a%2Fb/autoscaler": answer})
    shown = lines(keyscale("autoscaler", "show", "a/b"))
    effect = '{ "capacity": 20.5, "utilization": 0.5, "work_ms": "3 ms" }'
    assert " ".join(shown) == (
        "mode ACTIVE verdict SCALE_UP message too slow advice - parallelism 2 target 4"
        " at_ms 1970-01-01 00:00:00.001 confirmed_at_ms 1970-01-01 00:00:00.002"
        f' present {effect} facts {{ "lag_records": 7 }}'
        ' last_move { "message": "was slow", "outcome": "KEPT", "at_ms": "1970-01-01 00:00:00.001",'
        f' "operation_id": "o", "present": {effect}, "measured": {effect} }}'
    )
    assert done(keyscale("autoscaler", "show", "a/b", "--json")).json == answer
    assert requests == ["GET /v1/jobs/a%2Fb/autoscaler"] * 2


def test_an_autoscaler_without_a_decision_has_its_mode_alone(asked: Callable[[Answers], list[Any]]) -> None:
    asked({"GET /v1/jobs/flights/autoscaler": {"mode": "OFF", "decision": None, "last_move": None}})
    assert lines(keyscale("autoscaler", "show", "flights")) == ["mode OFF"]


def test_a_replay_of_the_input_is_shown_with_each_lag_at_its_name(asked: Callable[[Answers], list[Any]]) -> None:
    path = "GET /v1/jobs/flights/autoscaler/replay?parallelism=4&hours=2.0"
    answer = {
        "parallelism": 4,
        "capacity": 12_345.6,
        "peaks": {"measured_ms": 2000, "as_run_ms": None, "replayed_ms": 500},
        "error": 0.126,
        "reason": None,
    }
    requests = asked({path: [answer, {**answer, "error": None}, {**answer, "peaks": None, "reason": "no input"}]})
    command = ("autoscaler", "replay", "flights", "-p", "4", "--hours", "2")
    assert lines(keyscale(*command)) == [
        "parallelism 4",
        "capacity 12,346 records/s",
        "largest lag, replayed 500 ms",
        "largest lag, measured 2 s",
        "largest lag, by the model as run -",
        "error of the model 13%",
    ]
    assert lines(keyscale(*command))[-1] == "error of the model -"
    assert lines(keyscale(*command)) == ["nothing can be replayed: no input"]
    assert requests == [path] * 3


def test_decisions_are_asked_for_and_listed_as_the_options_say(asked: Callable[[Answers], list[Any]]) -> None:
    path = "GET /v1/jobs/flights/autoscaler/decisions"
    answers: Answers = {f"{path}?limit=100&moves_only=false": {"decisions": []}}
    answers[f"{path}?limit=5&moves_only=true"] = {"decisions": [MOVE]}
    requests = asked(answers)
    assert len(lines(keyscale("autoscaler", "decisions", "flights"))) == 1
    assert lines(keyscale("autoscaler", "decisions", "flights", "--moves", "--limit", "5")) == [
        "AT UNTIL VERDICT FROM TO OUTCOME MESSAGE",
        "1970-01-01 00:00:00.001 1970-01-01 00:00:00.002 SCALE_UP 2 4 KEPT was slow",
    ]
    assert requests == list(answers)


def test_wheels_of_requirements_are_uploaded_and_listed(
    asked: Callable[[Answers], list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [tmp_path / "a-1.whl", tmp_path / "b-2.whl"]
    for wheel in wheels:
        wheel.write_text(wheel.name)
    given: list[Any] = []

    class Downloaded:
        def __init__(self, path: Path, platform: Any) -> None:
            given.extend((path, platform))

        def __enter__(self) -> list[Path]:
            return wheels

        def __exit__(self, *_: object) -> None:
            given.append("deleted")

    monkeypatch.setattr(artifacts, "downloaded_wheels", Downloaded)
    rows = [
        {"id": name, "filename": name, "version": 3, "kind": "WHEEL", "size_bytes": 2048, "created_at_ms": 1}
        for name in ("up-a", "up-b")
    ]
    requests = asked({"GET /v1/artifacts/platform": {"packages": {}}, "POST /v1/artifacts": rows})
    (tmp_path / "requirements.txt").write_text("a\n")
    assert lines(keyscale("artifacts", "upload", "--requirements", str(tmp_path / "requirements.txt"))) == [
        "ID FILE VERSION KIND SIZE CREATED",
        "up-a up-a 3 WHEEL 2.0 KiB 1970-01-01 00:00:00.001",
        "up-b up-b 3 WHEEL 2.0 KiB 1970-01-01 00:00:00.001",
    ]
    assert requests == ["GET /v1/artifacts/platform", *["POST /v1/artifacts"] * 2]
    assert given == [tmp_path / "requirements.txt", {"packages": {}}, "deleted"]
    missing = keyscale("artifacts", "upload", "--requirements", str(tmp_path))
    assert (missing.exit_code, "is not a file" in missing.stderr, len(requests)) == (1, True, 3)


def test_the_platform_is_shown_with_its_packages_and_packages_of_jars(asked: Callable[[Answers], list[Any]]) -> None:
    answer = {"python_version": "3.11.7", "packages": {"numpy": "2.1"}, "jar_packages": ["kafka"]}
    asked({"GET /v1/artifacts/platform": answer})
    shown = lines(keyscale("artifacts", "platform"))
    assert shown == ["NAME VERSION", "python 3.11.7", "numpy 2.1", "package:kafka -"]


ARTIFACT = {
    "id": "a",
    "name": "flights",
    "version": 2,
    "filename": "flights.py",
    "kind": "PYTHON",
    "size_bytes": 5,
    "sha256": "x",
    "created_at_ms": 1,
    "uploaded_by": "ann",
    "used_by": [],
}


def test_an_artifact_is_written_to_its_own_name_or_to_the_chosen_file(
    asked: Callable[[Answers], list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked({"GET /v1/artifacts/a": ARTIFACT, "GET /v1/artifacts/a/content": b"\x00\xff"})
    monkeypatch.chdir(tmp_path)
    assert lines(keyscale("artifacts", "download", "a")) == ["wrote flights.py"]
    assert (tmp_path / "flights.py").read_bytes() == b"\x00\xff"
    other = tmp_path / "other.py"
    answer = done(keyscale("artifacts", "download", "a", "-o", str(other), "--json"))
    assert (answer.json, other.read_bytes()) == ({"file": str(other), "size_bytes": 2}, b"\x00\xff")
    refused = keyscale("artifacts", "download", "a", "-o", str(tmp_path / "none" / "x"))
    assert (refused.exit_code, "cannot be written: No such file" in refused.stderr) == (1, True)


def test_jobs_are_recovered_part_by_part_and_a_refused_job_fails_the_command(
    asked: Callable[[Answers], list[Any]],
) -> None:
    failure = {"code": "STATE_TOO_NEW", "message": "it is newer"}
    jobs = [
        {"id": "1", "name": "a", "outcome": "RECOVERED", "revision": 3, "failure": None},
        {"id": "2", "name": "b", "outcome": "REFUSED", "revision": None, "failure": failure},
        {"id": "3", "name": "c", "outcome": "PRESENT", "revision": 1, "failure": None},
    ]
    parts = [{"jobs": jobs[:1], "next": "1"}, {"jobs": jobs[1:2], "next": "2"}, {"jobs": jobs[2:], "next": None}]
    requests = asked({"POST /v1/recover": [*parts, {"jobs": jobs[:1], "next": None}, {"jobs": [], "next": None}]})
    answer = keyscale("recover", "--store", "s3://b", "--job", "x", "--job", "y", "--dry-run")
    assert answer.exit_code == 1
    assert [" ".join(line.split()) for line in answer.stdout.splitlines()] == [
        "ID NAME OUTCOME REVISION WHY",
        "1 a would be recovered 3 -",
        "2 b refused - STATE_TOO_NEW: it is newer",
        "3 c present 1 -",
    ]
    body = {"store_url": "s3://b", "jobs": ["x", "y"], "dry_run": True}
    assert requests == [("POST /v1/recover", {**body, "after": after}) for after in (None, "1", "2")]
    assert lines(keyscale("recover"))[1] == "1 a recovered 3 -"
    assert requests[3][1] == {"store_url": None, "jobs": [], "dry_run": False, "after": None}
    assert lines(keyscale("recover")) == ["the store has no record of a job; check the URL of --store"]


def test_the_place_of_the_control_plane_is_shown_with_a_masked_token(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path))
    assert lines(keyscale(*home, "where")) == [
        "url: http://127.0.0.1:9",
        "dashboard: http://127.0.0.1:9/ui/",
        "token: the-to…",
        f"home: {tmp_path}",
    ]
    shown = done(keyscale(*home, "where", "--show-token", "--json")).json
    assert shown["token"] == "the-token-of-a-user"  # noqa: S105 - a test's own


def test_the_health_is_shown_with_the_leader_and_all_quotas(asked: Callable[[Answers], list[Any]]) -> None:
    answer = {"status": "OK", "leader": {"url": "http://b", "epoch": 3}, "quotas": {"jobs": 5, "cores": 8}}
    asked({"GET /health": answer})
    assert lines(keyscale("health")) == ["status: OK", "leader: http://b", "quotas: jobs 5, cores 8"]
    assert done(keyscale("health", "--json")).json == answer


def test_metrics_of_functions_are_shown_with_labels_and_the_mean_of_a_histogram(
    asked: Callable[[Answers], list[Any]],
) -> None:
    def metric(name: str, kind: str, value: float | None, histogram: Any = None, **labels: str) -> dict[str, Any]:
        made = {"name": name, "operator": "count", "kind": kind, "labels": labels}
        return {**made, "value": value, "histogram": histogram}

    metrics = [
        metric("seen", "COUNTER", 12_345, team="a", lang="de"),
        metric("size", "GAUGE", None),
        metric("time", "HISTOGRAM", None, {"count": 1200, "sum": 600.0}),
        metric("idle", "HISTOGRAM", None, {"count": 0, "sum": 0.0}),
        metric("zero", "GAUGE", 0),
    ]
    asked({"GET /v1/jobs/flights/user-metrics": {"user_metrics": metrics}})
    assert lines(keyscale("jobs", "metrics", "flights")) == [
        "METRIC LABELS OPERATOR KIND VALUE",
        "seen team=a, lang=de count COUNTER 12,345",
        "size - count GAUGE -",
        "time - count HISTOGRAM 1,200, mean 0.5",
        "idle - count HISTOGRAM 0",
        "zero - count GAUGE 0",
    ]


def state(name: str, fate: str, **facts: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {"kind": "value", "reason": None, "rules": [], "stored": "int", "declared": None}
    return {"name": name, "fate": fate, **usual, **facts}


PLAN: dict[str, Any] = {
    "compatible": True,
    "operators": [
        {
            "uid": "count",
            "fate": "KEPT",
            "reason": None,
            "states": [
                state("clicks", "KEPT"),
                state("sum", "MIGRATED", declared="long", rules=["int to long", "x"]),
                state("bad", "INCOMPATIBLE", kind="map", declared="text", reason="no"),
            ],
        },
        {"uid": "gone", "fate": "DROPPED", "reason": "not in the program", "states": []},
        {"uid": "map", "fate": "NEW", "reason": None, "states": []},
    ],
    "settings": [{"name": "parallelism", "before": 2, "after": 4}],
    "sources": [
        {"uid": "in", "fate": "KEPT", "reason": None},
        {"uid": "old", "fate": "DROPPED", "reason": "why"},
        {"uid": "new", "fate": "NEW", "reason": None},
    ],
    "sinks": [
        {"uid": "a", "fate": "NEW", "reason": None},
        {"uid": "b", "fate": "DROPPED", "reason": None},
        {"uid": "c", "fate": "DROPPED", "reason": "why"},
    ],
    "movement": {"state_bytes": 4096, "moved_bytes": 1024},
    "rescale_mode": "LIVE",
    "not_live": None,
    "downtime": {"expected_ms": 1500, "reason": None},
    "failure": None,
    "requires_allow_non_restored_state": False,
}


def test_a_plan_is_shown_with_the_fate_of_each_state_and_fails_if_it_cannot_be_applied(
    asked: Callable[[Answers], list[Any]],
) -> None:
    failure = {"code": "BROKEN", "message": "it broke", "traceback": "line 1", "advice": "mend it"}
    worse = {
        **PLAN,
        "compatible": False,
        "operators": [],
        "settings": [],
        "rescale_mode": "RESTART",
        "not_live": {"message": "slots"},
        "downtime": {"expected_ms": None, "reason": "never measured"},
        "failure": failure,
        "requires_allow_non_restored_state": True,
    }
    requests = asked({"PATCH /v1/jobs/flights": [{"plan": PLAN}, {"plan": worse}]})
    kept = ["source old: why", "source new: NEW", "sink b: dropped", "sink c: dropped; why"]
    assert lines(keyscale("jobs", "plan", "flights", "-p", "4")) == [
        "OPERATOR STATE KIND FATE DETAILS",
        "count clicks value KEPT int",
        "count sum value MIGRATED int to long; x",
        "count bad map INCOMPATIBLE stored: int; declared: text",
        "gone DROPPED not in the program",
        "map NEW",
        "setting parallelism: 2 to 4",
        *kept,
        "state: 4.0 KiB, of which 1.0 KiB move",
        "carried out by the running driver, between two batches",
        "downtime: about 1.5 s",
    ]
    refused = keyscale("jobs", "plan", "flights", "-p", "4")
    assert (refused.exit_code, "the change cannot be applied" in refused.stderr) == (1, True)
    assert refused.stdout.splitlines() == [
        *kept,
        "state: 4.0 KiB, of which 1.0 KiB move",
        "carried out by a new driver: slots",
        "downtime: never measured",
        "BROKEN: it broke",
        "line 1",
        "mend it",
        "state or output would be lost: --allow-non-restored-state has to allow it",
    ]
    assert requests == [("PATCH /v1/jobs/flights", {"spec": {"parallelism": 4}, "dry_run": True})] * 2


def test_a_checkpoint_is_shown_with_a_line_per_subtask(asked: Callable[[Answers], list[Any]]) -> None:
    subtasks = [
        {"index": index, "key_group_start": 4 * index, "key_group_end": 4 * index + 3, "status": "COMPLETED"}
        | {
            "checkpoint": {"sync": 2, "async": 30 + index},
            "start_delay": 1000,
            "checkpointed_size": 1,
            "state_size": 2048,
        }
        for index in range(2)
    ]
    asked({"GET /v1/jobs/flights/checkpoints/6": {"id": 6, "operators": [{"uid": "count", "subtasks": subtasks}]}})
    assert lines(keyscale("checkpoints", "show", "flights", "6")) == [
        "id 6",
        "",
        "OPERATOR SUBTASK FROM GROUP TO GROUP STATUS SYNC ASYNC START DELAY INCREMENT FULL SIZE",
        "count 0 0 3 COMPLETED 2 ms 30 ms 1 s 1 B 2.0 KiB",
        "count 1 4 7 COMPLETED 2 ms 31 ms 1 s 1 B 2.0 KiB",
    ]


def test_a_savepoint_is_kept_and_shown(asked: Callable[[Answers], list[Any]]) -> None:
    asked({"POST /v1/jobs/flights/savepoints/a%2Fb/keep": {"savepoint_id": "a/b", "owner": "USER"}})
    assert lines(keyscale("savepoints", "keep", "flights", "a/b")) == ["savepoint_id a/b", "owner USER"]


def test_the_state_of_a_key_is_shown_state_by_state(asked: Callable[[Answers], list[Any]]) -> None:
    states = [
        {
            "state": "clicks",
            "kind": "map",
            "rows": [{"map_key": "home", "value": 3}, {"map_key": "end", "value": None}],
        },
        {"state": "last", "kind": "value", "rows": [{"value": {"page": "ä"}}]},
        {"state": "timers", "kind": "timers", "rows": []},
    ]
    answer = {"batch_id": 1700, "source_positions": {}, "key": {"user": "ada"}, "key_group": 5, "states": states}
    asked({"GET /v1/jobs/flights/state/count?key=ada&at=latest": {**answer, "is_truncated": False}})
    assert lines(keyscale("state", "get", "flights", "--operator", "count", "--key", "ada")) == [
        "batch_id 1,700",
        "source_positions -",
        "key {",
        '"user": "ada"',
        "}",
        "key_group 5",
        "",
        "clicks (map)",
        "map_key value",
        "home 3",
        "end -",
        "",
        "last (value)",
        "value",
        '{"page": "ä"}',
        "",
        "timers (timers)",
        "nothing",
    ]


def test_the_history_of_a_key_is_shown_change_by_change(asked: Callable[[Answers], list[Any]]) -> None:
    usual = {"batch_id": 7, "attempt": 2, "committed_at_ms": 1, "state": "clicks"}
    changes = [{**usual, "change": "PUT", "row": {"value": 3}}, {**usual, "change": "REMOVED", "row": {}}]
    asked({"GET /v1/jobs/flights/state-history/count?key=ada": {"changes": changes}})
    assert lines(keyscale("state", "history", "flights", "--operator", "count", "--key", "ada")) == [
        "BATCH COMMITTED STATE CHANGE ROW",
        '7 1970-01-01 00:00:00.001 clicks PUT {"value": 3}',
        "7 1970-01-01 00:00:00.001 clicks REMOVED {}",
    ]


@pytest.mark.parametrize(
    ("options", "body"),
    [
        (
            ("set", "--value", "[1]", "--map-key", '"home"', "--namespace", "7"),
            {"value": [1], "time_ms": None, "namespace": 7, "map_key": "home"},
        ),
        (("set", "--time-ms", "60"), {"value": None, "time_ms": 60, "namespace": None, "map_key": None}),
        (("delete",), {"deletes": True, "time_ms": None, "namespace": None, "map_key": None}),
        (("delete", "--time-ms", "60"), {"deletes": True, "time_ms": 60, "namespace": None, "map_key": None}),
    ],
)
def test_a_change_of_a_key_is_sent_with_its_place(
    asked: Callable[[Answers], list[Any]], options: tuple[str, ...], body: dict[str, Any]
) -> None:
    requests = asked({"POST /v1/jobs/flights/state-changes": {"savepoint_id": "s", "checkpoint_id": 9}})
    place = ("--operator", "count", "--state", "clicks", "--key", "ada", "--id", "s", "--checkpoint", "8")
    assert lines(keyscale("state", options[0], "flights", *place, *options[1:])) == [
        "savepoint_id s",
        "checkpoint_id 9",
    ]
    of = {"operator": "count", "state": "clicks", "key": "ada", "id": "s", "checkpoint_id": 8}
    assert requests == [("POST /v1/jobs/flights/state-changes", {**of, **body})]


def test_a_subscription_is_shown_in_words_with_its_deliveries(asked: Callable[[Answers], list[Any]]) -> None:
    subscription = {"id": "u", "kinds": ["JOB_FAILED", "STORE_AWAY"], "selector": {"jobs": ["a"], "labels": {"t": "x"}}}
    delivery = {"id": "msg_1", "status": "FAILED", "problem": "410 Gone", "attempts": 1000, "created_at_ms": 1}
    answers = {"GET /v1/subscriptions/u": subscription}
    asked({**answers, "GET /v1/subscriptions/u/deliveries?limit=20": {"deliveries": [delivery]}})
    shown = lines(keyscale("subscriptions", "show", "u"))
    assert shown[:2] == ["id u", "kinds JOB_FAILED, STORE_AWAY"]
    assert "a" in shown[2]
    assert "t=x" in shown[2]
    assert {"FAILED", "1,000", "410"} <= set(shown[-1].split())
    whole = done(keyscale("subscriptions", "show", "u", "--json")).json
    assert whole == {**subscription, "deliveries": [delivery]}


STATUS = {"state": "RUNNING", "health": {"score": 70}, "restarts": 3, "failure": {"code": "BROKE", "message": "no"}}
JOB = {"id": "0a", "name": "flights", "labels": {}, "spec": {"parallelism": 4}, "status": STATUS, "created_at_ms": 1}
OPERATION = {
    "id": "o",
    "kind": "RESCALE",
    "status": "FAILED",
    "phase": "RESTORE",
    "requested_at_ms": 1,
    "requested_by": "ann",
    "duration_ms": 300,
    "downtime_ms": 40,
    "failure": {"code": "BROKE", "message": "no"},
}
CHECKPOINT = {
    "id": 7,
    "status": "COMPLETED",
    "checkpoint_type": "SAVEPOINT",
    "owner": "USER",
    "attempt": 3,
    "batch_id": 12,
    "num_acknowledged_subtasks": 2,
    "trigger_timestamp": 1,
    "end_to_end_duration": 90,
    "checkpointed_size": 1024,
    "state_size": 2048,
}
COMPARED = {
    "uid": "count",
    "from_state_size": 1,
    "to_state_size": 2,
    "to_checkpointed_size": 3,
    "shared_files": 4,
    "shared_bytes": 5,
    "only_from_bytes": 6,
    "only_to_bytes": 7,
}
SAVEPOINT = {
    "savepoint_id": "s",
    "checkpoint_id": 7,
    "owner": "USER",
    "trigger_timestamp": 1,
    "end_to_end_duration": 90,
    "state_size": 2048,
    "external_path": "file:///s",
}
ACCOUNT = {
    "id": "t",
    "name": "ci",
    "role": "VIEWER",
    "scope": {"jobs": ["a", "b"], "labels": {"c": "d"}},
    "created_by": "ann",
    "created_at_ms": 1,
    "expires_at_ms": 2,
    "revoked_at_ms": None,
}
SUBSCRIBED = {
    "id": "u",
    "channel": "SLACK",
    "target": "https://x/…",
    "selector": None,
    "kinds": ["JOB_FAILED", "STORE_AWAY"],
    "created_by": "ann",
    "pending_count": 2,
    "failed_count": 1,
}
EVENT = {"at_ms": 1, "job_id": "0a", "kind": "JOB_FAILED", "actor": "ann", "message": "it broke"}
FIRST, SECOND = ("1970-01-01 00:00:00.00" + str(number) for number in (1, 2))


@pytest.mark.parametrize(
    ("command", "path", "answer", "row"),
    [
        ("jobs list", "jobs", {"jobs": [JOB]}, f"0a flights RUNNING 70 4 3 BROKE {FIRST}"),
        (
            "operations list flights",
            "jobs/flights/operations",
            {"operations": [OPERATION]},
            f"o RESCALE FAILED RESTORE {FIRST} ann 300 ms 40 ms BROKE",
        ),
        (
            "checkpoints list flights",
            "jobs/flights/checkpoints",
            {"history": [CHECKPOINT]},
            f"7 COMPLETED SAVEPOINT USER 3 12 2 {FIRST} 90 ms 1.0 KiB 2.0 KiB",
        ),
        (
            "checkpoints compare flights 6 8",
            "jobs/flights/checkpoints/6/compare?to=8",
            {"operators": [COMPARED]},
            "count 1 B 2 B 3 B 4 5 B 6 B 7 B",
        ),
        (
            "savepoints list flights",
            "jobs/flights/savepoints",
            {"savepoints": [SAVEPOINT]},
            f"s 7 USER {FIRST} 90 ms 2.0 KiB file:///s",
        ),
        ("tokens list", "tokens", {"tokens": [ACCOUNT]}, f"t ci VIEWER a, b, c=d ann {FIRST} {SECOND} -"),
        (
            "subscriptions list",
            "subscriptions",
            {"subscriptions": [SUBSCRIBED]},
            "u SLACK https://x/… every job JOB_FAILED, STORE_AWAY ann 2 1",
        ),
        (
            "secrets list",
            "secrets",
            {"secrets": [{"name": "ORDERS", "labels": {"b": "c", "a": "d"}, "is_set": False}]},
            "ORDERS a=d, b=c no",
        ),
        ("events", "events?limit=100", {"events": [EVENT]}, f"{FIRST} 0a JOB_FAILED ann it broke"),
        (
            "revisions diff flights 2 5",
            "jobs/flights/revisions/2/diff?to=5",
            {"differences": [{"path": "parallelism", "before": 2, "after": 4}]},
            "parallelism 2 4",
        ),
    ],
)
def test_each_column_of_a_list_has_its_own_field(
    asked: Callable[[Answers], list[Any]], command: str, path: str, answer: dict[str, Any], row: str
) -> None:
    asked({f"GET /v1/{path}": {**answer, "next": None}})
    _, shown = lines(keyscale(*command.split()))
    assert shown == row


def test_a_change_that_waits_for_an_approval_names_the_command_of_the_other_user(
    asked: Callable[[Answers], list[Any]],
) -> None:
    change = {**OPERATION, "id": "c", "status": "PENDING_APPROVAL", "phases": [], "steps": [], "not_live": None}
    asked({"POST /v1/jobs/flights/rescale": change})
    command = ("rescale", "flights", "4", "--no-wait")
    assert lines(keyscale(*command)) == [
        "The change waits for another user: `./keyscale operations approve c`",
        "c",
    ]
    assert done(keyscale(*command, "--json")).json == change


def test_a_change_is_named_and_not_followed_if_its_user_does_not_wait(asked: Callable[[Answers], list[Any]]) -> None:
    change = {**OPERATION, "id": "c", "status": "IN_PROGRESS", "phases": [], "steps": [], "not_live": None}
    requests = asked(
        {
            "GET /v1/jobs/flights": {"revision": 7},
            "PATCH /v1/jobs/flights": change,
            "POST /v1/jobs/flights/rollback": change,
            "POST /v1/operations/c/approve": change,
        }
    )
    for command in ("jobs update flights -p 4", "jobs rollback flights 3", "operations approve c"):
        assert lines(keyscale(*command.split(), "--no-wait")) == ["c"]
    assert [each[0] if isinstance(each, tuple) else each for each in requests] == [
        "GET /v1/jobs/flights",
        "PATCH /v1/jobs/flights",
        "POST /v1/jobs/flights/rollback",
        "POST /v1/operations/c/approve",
    ]


def test_changes_of_several_keys_are_sent_line_by_line(asked: Callable[[Answers], list[Any]], tmp_path: Path) -> None:
    requests = asked({"POST /v1/jobs/flights/state-changes": {"savepoint_id": "s", "checkpoint_id": 9}})
    place = {"operator": "count", "state": "clicks"}
    given = [
        {**place, "key": ["ada", 7], "value": {"page": 1}},
        {**place, "key": "bob", "delete": True, "map_key": "home"},
        {**place, "key": 3, "time_ms": 60, "namespace": 5},
    ]
    file = tmp_path / "lines.json"
    file.write_text("".join(json.dumps(each) + "\n" for each in given))
    for verb in ("set", "delete"):
        options = ("--lines", str(file), "--id", "s", "--checkpoint", "8")
        assert lines(keyscale("state", verb, "flights", *options)) == ["savepoint_id s", "checkpoint_id 9"]
    for (_, body), deletes in zip(requests, ([False, True, False], [True, True, True]), strict=True):
        assert body == {
            "id": "s",
            "checkpoint_id": 8,
            "changes": [
                {**place, "key": '["ada", 7]', "value": {"page": 1}, "deletes": deletes[0]},
                {**place, "key": "bob", "map_key": "home", "deletes": deletes[1]},
                {**place, "key": "3", "time_ms": 60, "namespace": 5, "deletes": deletes[2]},
            ],
        }


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--lines", "x", "--key", "ada"), "--lines has all changes"),
        (("--lines", "x", "--map-key", "home"), "--lines has all changes"),
        (("--lines", "x", "--namespace", "1"), "--lines has all changes"),
        (("--lines", "x", "--time-ms", "60"), "--lines has all changes"),
        (("--operator", "count", "--state", "clicks"), "give --operator, --state and --key"),
        (("--operator", "count", "--state", "clicks", "--key", "a", "--to", "file:///s"), "--to is for a LOCATION"),
        (("--lines", "/nowhere/lines.json"), "cannot be read"),
    ],
)
def test_options_of_a_change_that_do_not_go_together_are_refused_before_a_request(
    asked: Callable[[Answers], list[Any]], options: tuple[str, ...], reason: str
) -> None:
    requests = asked({})
    answer = keyscale("state", "delete", "flights", *options)
    assert (answer.exit_code, reason in " ".join(answer.stderr.split()), requests) == (1, True, [])


def test_a_test_message_that_is_not_sent_in_time_ends_the_command(
    asked: Callable[[Answers], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr(subscriptions, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    waits = {"id": "msg_1", "subscription_id": "u", "status": "PENDING", "problem": None}
    another = {**waits, "id": "msg_2", "status": "DELIVERED"}
    requests = asked(
        {"POST /v1/subscriptions/u/test": waits, "GET /v1/subscriptions/u/deliveries": {"deliveries": [another, waits]}}
    )
    answer = keyscale("subscriptions", "test", "u")
    assert (answer.exit_code, "was not sent within 30 s" in answer.stderr) == (3, True)
    assert len(requests) == 61


def test_a_bundle_is_named_after_its_job_and_a_rescale_is_planned_without_a_change(
    asked: Callable[[Answers], list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    requests = asked(
        {
            "GET /v1/jobs/0a": {"name": "flights"},
            "GET /v1/jobs/0a/bundle": b"zip",
            "POST /v1/jobs/0a/rescale": {"plan": {**PLAN, "operators": []}},
        }
    )
    assert lines(keyscale("jobs", "bundle", "0a")) == ["wrote flights.zip (3 B)"]
    assert (tmp_path / "flights.zip").read_bytes() == b"zip"
    assert "downtime: about 1.5 s" in lines(keyscale("rescale", "0a", "4", "--dry-run"))
    assert requests[2:] == [("POST /v1/jobs/0a/rescale", {"parallelism": 4, "dry_run": True})]


@pytest.mark.parametrize(("state", "exit_code"), [("STOPPED", 0), ("RUNNING", 3), ("FAILED", 1)])
def test_a_job_is_waited_for_until_it_has_the_status_of_the_option(
    asked: Callable[[Answers], list[Any]], state: str, exit_code: int
) -> None:
    job = {**JOB, "status": {**STATUS, "state": state, "desired": "RUNNING"}}
    asked({"GET /v1/jobs/flights": job})
    answer = keyscale("jobs", "wait", "flights", "--for", "stopped", "--timeout", "0")
    assert answer.exit_code == exit_code, answer.stderr
    assert ("not STOPPED" in answer.stderr) == (state == "RUNNING")


def test_a_new_job_is_shown_after_its_start_unless_its_user_waits(asked: Callable[[Answers], list[Any]]) -> None:
    started = {**JOB, "status": {**STATUS, "state": "SUBMITTING"}}
    requests = asked({"POST /v1/jobs": JOB, "POST /v1/jobs/0a/start": {"id": "o"}, "GET /v1/jobs/0a": started})
    shown = lines(keyscale("jobs", "create", "flights", "--artifact", "a", "--start"))
    assert shown[1].split()[:3] == ["0a", "flights", "SUBMITTING"]
    body = {"name": "flights", "labels": {}, "spec": {"artifact_id": "a"}}
    assert requests[0] == ("POST /v1/jobs", body)
    assert [str(each) for each in requests[-1:]] == ["GET /v1/jobs/0a"]


REASON = {"code": "SINK_UNAVAILABLE", "message": "the sink does not answer", "advice": "Start it."}
WHOLE_JOB: dict[str, Any] = {
    "id": "0a",
    "name": "flights",
    "labels": {"team": "a"},
    "revision": 7,
    "created_at_ms": 1,
    "spec": {"parallelism": 4},
    "status": {
        "state": "RUNNING",
        "restarts": 3,
        "started_at_ms": 2,
        "latest_checkpoint": {"id": 12, "state_size": 2048},
        "failure": None,
        "health": {"level": "WARNING", "score": 70, "reasons": [REASON, {**REASON, "code": "X", "advice": None}]},
        "conditions": [
            {"type": "RUNNING", "status": "TRUE", "reason": "DRIVER_RUNS", "message": "attempt 3 runs the job"},
            {"type": "HEALTHY", "status": "FALSE", "reason": "X", "message": "the sink does not answer"},
        ],
    },
    "metrics": {"input_rate": 2.0},
}


def test_a_job_is_shown_with_its_conditions_and_the_reasons_of_its_health(
    asked: Callable[[Answers], list[Any]],
) -> None:
    asked({"GET /v1/jobs/flights": WHOLE_JOB})
    shown = " ".join(lines(keyscale("jobs", "show", "flights")))
    health = (
        "health WARNING, 70 of 100 SINK_UNAVAILABLE: the sink does not answer. Start it. X: the sink does not answer."
    )
    checkpoint = 'latest_checkpoint { "id": 12, "state_size": "2.0 KiB" }'
    assert shown == (
        'id 0a name flights labels { "team": "a" } revision 7 created_at_ms 1970-01-01 00:00:00.001'
        f" {health} RUNNING TRUE, DRIVER_RUNS: attempt 3 runs the job"
        " HEALTHY FALSE, X: the sink does not answer"
        f" state RUNNING restarts 3 started_at_ms 1970-01-01 00:00:00.002 {checkpoint} failure -"
        ' spec { "parallelism": 4 } metrics { "input_rate": 2.0 }'
    )
    brief = " ".join(lines(keyscale("jobs", "show", "flights", "--brief")))
    assert brief == (
        f"name flights state RUNNING {health} revision 7 parallelism 4 restarts 3"
        f" started_at_ms 1970-01-01 00:00:00.002 {checkpoint} failure -"
    )
    assert done(keyscale("jobs", "show", "flights", "--json")).json == WHOLE_JOB


def test_a_program_that_no_job_could_start_with_fails_its_check(asked: Callable[[Answers], list[Any]]) -> None:
    column = {"name": "user", "type": "string"}
    count = {"name": "count", "kind": "value", "declared": "value of int64", "ttl_ms": 60_000}
    operators = [
        {"uid": "counts", "kind": "process", "key": [column, {"name": "day", "type": "date"}], "states": [count]},
        {"uid": "names", "kind": "map", "key": [], "states": []},
    ]
    parts = {
        "operators": operators,
        "sources": [{"uid": "in", "kind": "kafka"}],
        "sinks": [{"uid": "out", "kind": "x"}],
    }
    failure = {"code": "JOB_SCRIPT_FAILED", "message": "it raised", "advice": "Correct the script."}
    unset = {"traceback": None, "operator_uid": None, "subtask": None}
    asked(
        {
            "POST /v1/artifacts/a/check": [
                {"valid": True, "failure": None, **parts},
                {"valid": False, "failure": {**failure, **unset}, **parts, "operators": [], "sources": [], "sinks": []},
            ]
        }
    )
    assert lines(keyscale("artifacts", "check", "--artifact", "a")) == [
        "OPERATOR KIND KEY STATE DECLARED",
        "counts process user (string), day (date) count value of int64; TTL: 60 s",
        "names map",
        "source in: kafka",
        "sink out: x",
        "the program can be started",
    ]
    refused = keyscale("artifacts", "check", "--artifact", "a")
    assert refused.exit_code == 1
    assert refused.stdout.splitlines() == ["JOB_SCRIPT_FAILED: it raised", "Correct the script."]


def test_a_phase_and_a_note_are_shown_once_though_an_answer_has_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "POLL_S", 0)

    def phase(name: str, ended_at_ms: int | None, **more: Any) -> dict[str, Any]:
        return {"phase": name, "ended_at_ms": ended_at_ms, **more}

    waits = {"waits_for": {"message": "403"}}
    usual = {"status": "IN_PROGRESS", "not_live": {"message": "4 slots"}}
    answers = [
        {**usual, "phases": [phase("SAVEPOINT", 3), phase("STOP", None, **waits)]},
        {**usual, "phases": []},
        {**usual, "phases": [phase("SAVEPOINT", 3), phase("STOP", None, **waits)]},
        {**usual, "status": "COMPLETED", "phases": [phase("SAVEPOINT", 3), phase("STOP", 5), phase("VERIFY", 6)]},
    ]
    noted: list[str] = []
    control_plane: Any = SimpleNamespace(get=lambda _: answers.pop(0))
    ended = operations.follow(
        control_plane, "c", lambda each: noted.append(each["phase"]), lambda: noted.append("poll"), noted.append
    )
    assert ended["status"] == "COMPLETED"
    new_driver, store = "by a new driver: 4 slots", "waits for the object store: 403"
    assert noted == [new_driver, store, "SAVEPOINT", "poll", "poll", "poll", "STOP", "VERIFY"]
