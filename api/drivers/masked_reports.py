"""Masks the secrets of jobs in drivers' reports.

A driver masks them itself, but its job can prevent that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from keyscale.jobs.protocol.messages import CheckpointReport, Failure, Heartbeat, ReportedSeries, TopicPosition


def masked_heartbeat(message: Heartbeat, mask: Callable[[str], str]) -> Heartbeat:
    """Masks secrets in each text that a job can choose."""
    metrics = message.metrics
    outage, clean_up, live = metrics.sink_outage, metrics.clean_up, message.rescale
    return message.model_copy(
        update={
            "failure": _masked(message.failure, mask),
            "rescale": live and live.model_copy(update={"failure": _masked(live.failure, mask)}),
            "results": [
                result.model_copy(update={"failure": _masked(result.failure, mask)}) for result in message.results
            ],
            "metrics": metrics.model_copy(
                update={
                    "last_failure": _masked(metrics.last_failure, mask),
                    "sink_outage": outage and outage.model_copy(update={"reason": mask(outage.reason)}),
                    "sources": [
                        source.model_copy(
                            update={
                                "earliest": {
                                    mask(split): _masked_position(first, mask)
                                    for split, first in source.earliest.items()
                                }
                            }
                        )
                        for source in metrics.sources
                    ],
                    "source_lags": [
                        lag.model_copy(
                            update={"splits": {mask(split): records for split, records in lag.splits.items()}}
                        )
                        for lag in metrics.source_lags
                    ],
                    "counters": metrics.counters
                    and metrics.counters.model_copy(update={"user": _masked_series(metrics.counters.user, mask)}),
                    "user_gauges": _masked_series(metrics.user_gauges, mask),
                    "user_help": {name: text and mask(text) for name, text in metrics.user_help.items()},
                    "clean_up": clean_up.model_copy(update={"failure": _masked(clean_up.failure, mask)}),
                }
            ),
        }
    )


def masked_checkpoint(report: CheckpointReport, mask: Callable[[str], str]) -> CheckpointReport:
    """Returns a checkpoint's report with secrets masked in its failure."""
    return report.model_copy(update={"failure_message": report.failure_message and mask(report.failure_message)})


def masked_failure(failure: Failure, mask: Callable[[str], str]) -> Failure:
    """Returns a failure with secrets masked in its texts."""
    return failure.model_copy(
        update={
            name: text and mask(text)
            for name, text in (
                ("message", failure.message),
                ("traceback", failure.traceback),
                ("operator_uid", failure.operator_uid),
                ("advice", failure.advice),
            )
        }
    )


def _masked_series(found: Sequence[ReportedSeries], mask: Callable[[str], str]) -> list[ReportedSeries]:
    return [
        series.model_copy(update={"labels": {name: mask(value) for name, value in series.labels.items()}})
        for series in found
    ]


def _masked_position(position: int | TopicPosition, mask: Callable[[str], str]) -> int | TopicPosition:
    return position if isinstance(position, int) else position.model_copy(update={"topic_id": mask(position.topic_id)})


def _masked(failure: Failure | None, mask: Callable[[str], str]) -> Failure | None:
    return None if failure is None else masked_failure(failure, mask)
