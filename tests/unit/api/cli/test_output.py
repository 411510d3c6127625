from __future__ import annotations

import json

import pytest

from keyscale.api.cli.output import Output, cell


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("status", "RUNNING", "RUNNING"),
        ("status", "\x1b[2Jgone", "\\x1b[2Jgone"),
        ("status", None, "-"),
        ("parameters", {}, "-"),
        ("is_savepoint", True, "yes"),
        ("parallelism", 32768, "32,768"),
        ("state_size", 0, "0 B"),
        ("state_size", 1536, "1.5 KiB"),
        ("size_bytes", 5 << 40, "5.0 TiB"),
        ("end_to_end_duration", 999, "999 ms"),
        ("downtime_ms", 12_340, "12.3 s"),
        ("duration_ms", 185_000, "3 min 5 s"),
        ("created_at_ms", 1_363_000_000_123, "2013-03-11 11:06:40.123"),
        ("running_since_ms", 1_363_000_000_123, "2013-03-11 11:06:40.123"),
        ("trigger_timestamp", 1_363_000_000_123, "2013-03-11 11:06:40.123"),
        ("processing_time_ms", 1_363_000_000_123, "2013-03-11 11:06:40.123"),
        ("watermark_ms", 1_363_000_000_123, "2013-03-11 11:06:40.123"),
        ("watermark_lag_ms", 1_500, "1.5 s"),
    ],
)
def test_a_value_is_shown_in_the_unit_that_its_field_names(field: str, value: object, shown: str) -> None:
    assert cell(field, value) == shown


def test_a_failure_is_shown_once_with_its_traceback_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    failure = {
        "code": "JOB_FUNCTION_FAILED",
        "message": "the function raised KeyError",
        "traceback": 'File "job.py", line 3\nKeyError\n',
        "operator_uid": "totals",
        "subtask": 1,
        "advice": "Correct the function.",
    }
    Output(as_json=False).fields({"name": "x", "attempt": {"number": 2, "failure": failure}, "failure": failure})
    shown = capsys.readouterr().out
    assert shown.count("raised KeyError") == 1
    assert shown.startswith(
        "JOB_FUNCTION_FAILED: the function raised KeyError (operator totals, subtask 1)\n"
        'File "job.py", line 3\nKeyError\nCorrect the function.\n\n'
    )


def test_nested_values_have_their_units_too(capsys: pytest.CaptureFixture[str]) -> None:
    revision = {
        "checkpoints": {"interval_ms": 30_000, "retained_count": 3},
        "sizes_bytes": [1536],
        "wants_ms": True,
        "times_ms": [1_363_000_000_123],
    }
    Output(as_json=False).fields({"revision": revision})
    shown = capsys.readouterr().out
    for part in (
        '"interval_ms": "30 s"',
        '"retained_count": 3',
        '"1.5 KiB"',
        '"wants_ms": true',
        '"2013-03-11 11:06:40.123"',
    ):
        assert part in shown
    Output(as_json=True).fields({"revision": revision})
    assert json.loads(capsys.readouterr().out) == {"revision": revision}


@pytest.mark.parametrize("moment_ms", [2**63 + 1_795_867_200_000, -(2**63)])
def test_a_moment_beyond_all_calendars_is_shown_as_its_number(moment_ms: int) -> None:
    """A topic may keep its records for 2^63 milliseconds."""
    assert cell("restorable_until_at_ms", moment_ms) == f"{float(moment_ms):.0f} ms"
