"""The lines that show a plan."""

from __future__ import annotations

from typing import Any

from keyscale.api.cli.plan_output import state_rows, summary_lines

STATE = {"kind": "value", "rules": [], "stored": None, "declared": "value of int64", "reason": None}
PLAN: dict[str, Any] = {
    "operators": [
        {
            "uid": "totals",
            "reason": None,
            "states": [
                {**STATE, "name": "a", "fate": "NEW"},
                {**STATE, "name": "b", "fate": "MIGRATED", "rules": ["widened: int32 to int64", "added field x"]},
                {**STATE, "name": "c", "fate": "INCOMPATIBLE", "stored": "value of string", "reason": "long"},
            ],
        },
        {"uid": "gone", "fate": "DROPPED", "reason": None, "states": []},
    ],
    "settings": [{"name": "parallelism", "before": "2", "after": "4"}],
    "sources": [{"uid": "source", "fate": "KEPT", "reason": None}],
    "sinks": [{"uid": "out", "fate": "DROPPED", "reason": None}, {"uid": "files", "fate": "NEW", "reason": None}],
    "movement": {"state_bytes": 2048, "moved_bytes": 0},
    "rescale_mode": None,
    "not_live": None,
    "downtime": {"expected_ms": None, "reason": "the job does not run"},
    "failure": None,
    "requires_allow_non_restored_state": True,
}


def test_each_state_has_a_row_with_its_rules_or_both_of_its_forms() -> None:
    assert [(row["operator"], row["name"], row["fate"], row["details"]) for row in state_rows(PLAN)] == [
        ("totals", "a", "NEW", "value of int64"),
        ("totals", "b", "MIGRATED", "widened: int32 to int64; added field x"),
        ("totals", "c", "INCOMPATIBLE", "stored: value of string; declared: value of int64"),
        ("gone", "", "DROPPED", ""),
    ]


def test_what_changes_besides_state_is_told_in_lines() -> None:
    lines = list(summary_lines(PLAN))
    assert "setting parallelism: 2 to 4" in lines
    assert [line for line in lines if line.startswith("sink")] == ["sink out: dropped"]
    assert "downtime: the job does not run" in lines
    assert not any(line.startswith("source") for line in lines)
    assert lines[-1] == "state or output would be lost: --allow-non-restored-state has to allow it"


def test_a_failure_of_the_script_is_shown_with_its_code_traceback_and_advice() -> None:
    failure = {"code": "JOB_SCRIPT_FAILED", "message": "raised", "traceback": "Traceback ...", "advice": "Mend it."}
    failed = {**PLAN, "failure": failure}
    assert list(summary_lines(failed))[-4:-1] == ["JOB_SCRIPT_FAILED: raised", "Traceback ...", "Mend it."]


def test_a_rescale_says_which_driver_carries_it_out() -> None:
    assert not any(line.startswith("carried out") for line in summary_lines(PLAN))
    live = {**PLAN, "rescale_mode": "LIVE"}
    assert "carried out by the running driver, between two batches" in summary_lines(live)
    standby = {**PLAN, "rescale_mode": "STANDBY", "not_live": {"message": "the job's rescale_mode is STANDBY"}}
    assert "carried out by a new driver: the job's rescale_mode is STANDBY" in summary_lines(standby)
