"""A report of a driver is stored without the secrets of its job."""

from __future__ import annotations

import json

from keyscale.api.drivers.masked_reports import masked_checkpoint, masked_heartbeat
from keyscale.jobs.protocol.messages import CheckpointReport, DriverMetrics, Heartbeat
from keyscale.vocabulary import DriverState


def test_the_names_of_splits_are_masked() -> None:
    split, hidden = "amqp://ada:hunter22@host/orders", "amqp://ada:*****@host/orders"
    metrics = DriverMetrics.model_validate(
        {
            "sources": [{"uid": "orders", "earliest": {split: 7}}],
            "source_lags": [{"uid": "orders", "splits": {split: 3}}],
        }
    )
    message = Heartbeat(state=DriverState.RUNNING, metrics=metrics)
    stored = masked_heartbeat(message, lambda text: text.replace("hunter22", "*****")).metrics
    assert stored.sources[0].earliest == {hidden: 7}
    assert stored.source_lags[0].splits == {hidden: 3}


SECRET, OTHER = "hunter22", "kept"
FAILURE = {
    "code": "X",
    "message": f"of {SECRET}",
    "traceback": f"at {SECRET}",
    "operator_uid": f"op-{SECRET}",
    "advice": f"not {SECRET}",
    "subtask": 3,
    "final": True,
}
SERIES = {"operator": "count", "name": "n", "kind": "counter", "labels": {"of": f"l-{SECRET}"}, "values": [1]}


def whole() -> Heartbeat:
    """A report with the secret in each text that a job can choose."""
    return Heartbeat.model_validate(
        {
            "state": "RUNNING",
            "failure": FAILURE,
            "rescale": {"command_id": "r", "phase": "PREPARE", "from_attempt": 1, "to_attempt": 2, "began_at_ms": 3,
                        "failure": FAILURE},
            "results": [{"command_id": "c", "status": "FAILED", "failure": FAILURE}],
            "metrics": {
                "input_records": 7,
                "last_failure": FAILURE,
                "sink_outage": {"uid": "out", "since_ms": 1, "reason": f"no {SECRET}"},
                "clean_up": {"failing_since_ms": 4, "failure": FAILURE},
                "sources": [{"uid": "in", "earliest": {f"s-{SECRET}": {"offset": 5, "topic_id": f"t-{SECRET}"}}}],
                "source_lags": [{"uid": "in", "splits": {f"s-{SECRET}": 3}}],
                "counters": {"input_records": 9, "user": [SERIES]},
                "user_gauges": [{**SERIES, "kind": "gauge"}],
                "user_help": {"n": f"h {SECRET}", "m": ""},
            },
        }
    )  # fmt: skip


def test_no_text_of_a_report_keeps_a_secret_and_everything_else_stays() -> None:
    masked = masked_heartbeat(whole(), lambda text: text.replace(SECRET, OTHER))
    told = whole().model_dump_json()
    assert told.count(SECRET) == 4 * 5 + 7
    assert masked.model_dump(mode="json") == json.loads(told.replace(SECRET, OTHER))


def test_a_report_without_texts_is_stored_as_it_is() -> None:
    message = Heartbeat(state=DriverState.RUNNING, metrics=DriverMetrics(input_records=3))
    assert masked_heartbeat(message, lambda _: OTHER) == message


def test_the_failure_of_a_checkpoint_is_masked_and_a_checkpoint_without_one_is_not() -> None:
    report = CheckpointReport.model_validate({"checkpoint_id": 7, "status": "FAILED", "trigger_timestamp": 1})
    assert masked_checkpoint(report, lambda _: OTHER) == report
    failed = report.model_copy(update={"failure_message": f"no {SECRET}"})
    assert masked_checkpoint(failed, lambda text: text.replace(SECRET, OTHER)).failure_message == f"no {OTHER}"
