"""The reference page of the metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyscale.metrics import (
    BATCH,
    CONTROL_PLANE,
    DRIVER,
    JOB,
    JOB_COUNTERS,
    OBSERVED,
    OPERATOR,
    RATE,
    SHOWN_SERIES,
    SINK,
    SOURCE,
    SPLIT,
    SUBTASK,
    of_scope,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale.metrics import Metric, Scope

_HEAD = """# Metrics

The declarations in `src/keyscale/metrics.py`; `python -m keyscale.deploy.observability` makes this page. [Watching
jobs](guide/metrics.md) says how Prometheus gets them, and what to do for each alert.

Keyscale's own interfaces have milliseconds and whole names; Prometheus gets seconds and bytes. A metric without a name
in Prometheus is in the API alone. **series**: its history is in `GET /v1/jobs/{job_id}/series` and, where it has a
chart, on the pages.
"""
_SECTIONS: tuple[tuple[str, str, tuple[Scope, ...]], ...] = (
    ("Jobs", "Labels: `job_id` and `job_name`. Counters count since the job was created.", (JOB, OBSERVED)),
    ("Drivers", "Since the driver started, or over its last batches. Labels as of jobs.", (DRIVER,)),
    (
        "Batches",
        "The parts of each of the last batches; they add up to the time since the previous batch. Averages are above.",
        (BATCH,),
    ),
    ("Operators", "Since the driver started. Labels as of jobs, and `operator`.", (OPERATOR,)),
    ("Sinks", "Since the driver started. Labels as of jobs, and `sink`.", (SINK,)),
    ("Sources", "Labels as of jobs, and `source`.", (SOURCE,)),
    ("Splits", "Labels as of sources, and `split`. Each source has the 100 splits with most records.", (SPLIT,)),
    (
        "Subtasks",
        'In the last batch. Prometheus gets the smallest and the largest value of an operator: `of="min"` and `"max"`.',
        (SUBTASK,),
    ),
    ("Control plane", "Of one replica, since it started.", (CONTROL_PLANE,)),
)


def page() -> str:
    """Returns the page, in Markdown."""
    return "".join(_parts())


def _parts() -> Iterator[str]:
    yield _HEAD
    for title, text, scopes in _SECTIONS:
        yield f"\n## {title}\n\n{text}\n\n| name | in Prometheus | kind | unit | meaning |\n|---|---|---|---|---|\n"
        for metric in of_scope(*scopes):
            yield _row(metric, metric.prometheus)
        if JOB in scopes:
            for metric in JOB_COUNTERS:
                if metric.of_job:
                    yield _row(metric, metric.job_prometheus)


def _row(metric: Metric, name: str) -> str:
    is_exposed = metric.is_scraped and not (metric.fold is RATE and metric.reported_as is None)
    exposed = f"`{name}`" if is_exposed else ""
    kind = f"{metric.kind}, series" if metric in SHOWN_SERIES else str(metric.kind)
    labels = f" Labels: {', '.join(f'`{label}`' for label in metric.labels)}." if metric.labels else ""
    return f"| `{metric.name}` | {exposed} | {kind} | {metric.unit} | {metric.help}{labels} |\n"
