"""The alerts on the metrics, with examples.

One example of an alert fires it; another example is close, and does not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyscale.metrics import CONTROL_PLANE, JOB, METRICS, OBSERVED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.metrics import Scope

PAGE = "docs/guide/metrics.md"
JOB_LABELS = 'job_id="1",job_name="orders"'


def name_of(scope: Scope, name: str) -> str:
    """Returns the name in Prometheus of a declared metric.

    Raises:
        LookupError: No metric of the scope has this name.
    """
    for metric in METRICS:
        if metric.name == name and (metric.scope is scope or (scope is JOB and metric.of_job)):
            return metric.job_prometheus if metric.of_job else metric.prometheus
    raise LookupError(f"no metric of {scope} is named {name}")


@dataclass(frozen=True, slots=True)
class Example:
    """Values of series, one a minute.

    Attributes:
        series: Values by series, in promtool's notation.
        at: When the alert is looked at.
    """

    series: dict[str, str]
    at: str


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert.

    Attributes:
        name: Its name; the page on metrics has a section for it.
        expression: When it fires, in PromQL.
        lasting: How long it must hold.
        severity: `critical`: somebody must act now; `warning`: soon.
        summary: What is wrong, with Prometheus's labels.
        fires: An example that fires it.
        rests: An example that is close, and does not fire it.
        of_job: Whether it names a job.
    """

    name: str
    expression: str
    lasting: str
    severity: str
    summary: str
    fires: Example
    rests: Example
    of_job: bool = True


def _of_job(expression: str) -> str:
    """Returns an expression without the replica: all replicas report the same jobs."""
    return f"max by (job_id, job_name) ({expression})"


def _job_series(name: str, values: str, more: str = "") -> dict[str, str]:
    return {f'{name}{{{JOB_LABELS},instance="{each}"{more}}}': values for each in ("a", "b")}


_AGE = name_of(OBSERVED, "last_checkpoint_age_ms")
_INTERVAL = name_of(OBSERVED, "checkpoint_interval_ms")
_FAILED = name_of(OBSERVED, "last_checkpoint_failed")
_UNTIL = name_of(OBSERVED, "restorable_until_at_ms")
_WANTED, _UP, _STATUS = name_of(OBSERVED, "wanted"), name_of(OBSERVED, "up"), name_of(OBSERVED, "status")
_RESTARTS = name_of(OBSERVED, "restarts")
_WAITING, _DEAD, _LOST = name_of(JOB, "lag_records"), name_of(JOB, "dead_letters"), name_of(JOB, "lost_records")
_SILENCE = name_of(CONTROL_PLANE, "leader_silence")
_DATABASE, _STORE = name_of(CONTROL_PLANE, "database_up"), name_of(CONTROL_PLANE, "store_up")
_QUARANTINED, _STARTS = name_of(CONTROL_PLANE, "jobs_set_aside"), name_of(CONTROL_PLANE, "starts_waiting")
_REQUESTS = name_of(CONTROL_PLANE, "requests")

ALERTS = (
    Alert(
        "KeyscaleCheckpointTooOld",
        f"{_of_job(_AGE)} > clamp_min(5 * {_of_job(_INTERVAL)}, 600)",
        "1m",
        "critical",
        "The last checkpoint of {{ $labels.job_name }} is {{ $value | humanizeDuration }} old.",
        Example({**_job_series(_AGE, "0+60x20"), **_job_series(_INTERVAL, "10x20")}, "13m"),
        Example({**_job_series(_AGE, "0+60x20"), **_job_series(_INTERVAL, "600x20")}, "13m"),
    ),
    Alert(
        "KeyscaleRestorableSoonOver",
        f"{_of_job(_AGE)} > 3 * ({_of_job(_UNTIL)} - time())",
        "1m",
        "critical",
        "The sources of {{ $labels.job_name }} soon delete records after its newest snapshot.",
        Example({**_job_series(_AGE, "0+60x60"), **_job_series(_UNTIL, "3600x60")}, "50m"),
        Example({**_job_series(_AGE, "0+60x60"), **_job_series(_UNTIL, "3600x60")}, "40m"),
    ),
    Alert(
        "KeyscaleCheckpointFails",
        f"{_of_job(_FAILED)} == 1",
        "5m",
        "warning",
        "The newest checkpoint of {{ $labels.job_name }} failed.",
        Example(_job_series(_FAILED, "1x10"), "6m"),
        Example(_job_series(_FAILED, "1 1 1 0x10"), "6m"),
    ),
    Alert(
        "KeyscaleJobFailed",
        f"{_of_job(_STATUS + '{status=' + json.dumps('FAILED') + '}')} == 1",
        "0m",
        "critical",
        "{{ $labels.job_name }} has failed and is not started again.",
        Example(_job_series(_STATUS, "1x5", ',status="FAILED"'), "1m"),
        Example(_job_series(_STATUS, "1x5", ',status="RESTARTING"'), "1m"),
    ),
    Alert(
        "KeyscaleJobDown",
        f"{_of_job(_WANTED)} - {_of_job(_UP)} == 1",
        "5m",
        "critical",
        "{{ $labels.job_name }} should run, and its driver does not report.",
        Example({**_job_series(_WANTED, "1x10"), **_job_series(_UP, "0x10")}, "6m"),
        Example({**_job_series(_WANTED, "0x10"), **_job_series(_UP, "0x10")}, "6m"),
    ),
    Alert(
        "KeyscaleJobRestarts",
        f"{_of_job(f'increase({_RESTARTS}[15m])')} > 2",
        "0m",
        "warning",
        "{{ $labels.job_name }} restarts again and again.",
        Example(_job_series(_RESTARTS, "0+1x20"), "15m"),
        Example(_job_series(_RESTARTS, "0 1 1x20"), "15m"),
    ),
    Alert(
        "KeyscaleLagGrows",
        f"{_of_job(f'min_over_time({_WAITING}[15m])')} > 1000 and {_of_job(f'deriv({_WAITING}[15m])')} > 0",
        "15m",
        "warning",
        "{{ $labels.job_name }} falls behind: {{ $value | humanize }} records wait at least.",
        Example(_job_series(_WAITING, "2000+100x40"), "35m"),
        Example(_job_series(_WAITING, "9000-100x40"), "35m"),
    ),
    Alert(
        "KeyscaleDeadLetters",
        f"{_of_job(f'increase({_DEAD}[10m])')} > 0",
        "0m",
        "warning",
        "{{ $labels.job_name }} has diverted records to dead letters.",
        Example(_job_series(_DEAD, "5 5 9 9 9 9"), "5m"),
        Example(_job_series(_DEAD, "5 5 5 5 5 5"), "5m"),
    ),
    Alert(
        "KeyscaleRecordsLost",
        f"{_of_job(f'increase({_LOST}[10m])')} > 0",
        "0m",
        "critical",
        "Sources of {{ $labels.job_name }} have lost records that the job had not read.",
        Example(_job_series(_LOST, "5 5 9 9 9 9"), "5m"),
        Example(_job_series(_LOST, "5 5 5 5 5 5"), "5m"),
    ),
    Alert(
        "KeyscaleLeaderMissing",
        f"min({_SILENCE}) > 30",
        "1m",
        "critical",
        "No replica leads: jobs are not started, changed or restarted.",
        Example({f'{_SILENCE}{{instance="a"}}': "0+60x10"}, "5m"),
        Example({f'{_SILENCE}{{instance="a"}}': "0+60x10", f'{_SILENCE}{{instance="b"}}': "2x10"}, "5m"),
        of_job=False,
    ),
    Alert(
        "KeyscaleDatabaseAway",
        f"min({_DATABASE}) == 0",
        "1m",
        "critical",
        "PostgreSQL does not answer a replica.",
        Example({f'{_DATABASE}{{instance="a"}}': "0x5", f'{_DATABASE}{{instance="b"}}': "1x5"}, "2m"),
        Example({f'{_DATABASE}{{instance="a"}}': "0 1 1 1 1", f'{_DATABASE}{{instance="b"}}': "1x5"}, "2m"),
        of_job=False,
    ),
    Alert(
        "KeyscaleStoreAway",
        f"min({_STORE}) == 0",
        "2m",
        "critical",
        "The object store does not answer a replica.",
        Example({f'{_STORE}{{instance="a"}}': "0x5", f'{_STORE}{{instance="b"}}': "1x5"}, "3m"),
        Example({f'{_STORE}{{instance="a"}}': "0 1 1 1 1", f'{_STORE}{{instance="b"}}': "1x5"}, "3m"),
        of_job=False,
    ),
    Alert(
        "KeyscaleJobsSetAside",
        f"max({_QUARANTINED}) > 0",
        "5m",
        "warning",
        "The control plane cannot take the steps of {{ $value | humanize }} jobs.",
        Example({f'{_QUARANTINED}{{instance="a"}}': "2x10"}, "6m"),
        Example({f'{_QUARANTINED}{{instance="a"}}': "2 2 0x10"}, "6m"),
        of_job=False,
    ),
    Alert(
        "KeyscaleStartsWait",
        f"max(min_over_time({_STARTS}[15m])) > 0",
        "0m",
        "warning",
        "Starts of drivers wait for their turn for a quarter of an hour.",
        Example({f'{_STARTS}{{instance="a"}}': "1x20"}, "16m"),
        Example({f'{_STARTS}{{instance="a"}}': "1x12 0x8"}, "16m"),
        of_job=False,
    ),
    Alert(
        "KeyscaleRequestsFail",
        f'sum(rate({_REQUESTS}{{status=~"5.."}}[5m])) > 0.1',
        "5m",
        "warning",
        "Replicas answer {{ $value | humanize }} requests a second with an error of their own.",
        Example({f'{_REQUESTS}{{route="/v1/jobs",status="503"}}': "0+60x20"}, "11m"),
        Example({f'{_REQUESTS}{{route="/v1/jobs",status="404"}}': "0+60x20"}, "11m"),
        of_job=False,
    ),
)


def rules() -> str:
    """Returns the rules of all alerts, in YAML."""
    return "".join(_lines_of_rules())


def _lines_of_rules() -> Iterator[str]:
    yield "# Made by `python -m keyscale.deploy.observability`.\ngroups:\n  - name: keyscale\n    rules:\n"
    for alert in ALERTS:
        yield f"      - alert: {alert.name}\n        expr: {json.dumps(alert.expression)}\n"
        yield f"        for: {alert.lasting}\n        labels: {{severity: {alert.severity}}}\n        annotations:\n"
        yield f"          summary: {json.dumps(alert.summary)}\n          runbook: {json.dumps(_runbook(alert))}\n"


def _runbook(alert: Alert) -> str:
    return f"{PAGE}#{alert.name.lower()}"


def tests() -> str:
    """Returns the tests of all alerts for promtool, in YAML."""
    return "".join(_lines_of_tests())


def _lines_of_tests() -> Iterator[str]:
    yield "# Made by `python -m keyscale.deploy.observability`; run by `promtool test rules`.\n"
    yield "rule_files: [alerts.yml]\nevaluation_interval: 1m\ntests:\n"
    for alert in ALERTS:
        for example, is_firing in ((alert.fires, True), (alert.rests, False)):
            yield f"  - name: {alert.name} {'fires' if is_firing else 'does not fire'}\n    interval: 1m\n"
            yield "    input_series:\n"
            for series, values in example.series.items():
                yield f"      - {{series: {json.dumps(series)}, values: {json.dumps(values)}}}\n"
            yield f"    promql_expr_test:\n      - expr: {json.dumps(_firing(alert))}\n"
            yield f"        eval_time: {example.at}\n        exp_samples: {_expected(alert, is_firing=is_firing)}\n"


def _firing(alert: Alert) -> str:
    return f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}}) by (alertname, severity, job_name)'


def _expected(alert: Alert, *, is_firing: bool) -> str:
    if not is_firing:
        return "[]"
    named = ', job_name="orders"' if alert.of_job else ""
    labels = f'{{alertname="{alert.name}", severity="{alert.severity}"{named}}}'
    return f"[{{labels: {json.dumps(labels)}, value: 1}}]"
