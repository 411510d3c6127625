"""A report of a driver is stored without the secrets of its job."""

from __future__ import annotations

from keyscale.api.drivers.masked_reports import masked_heartbeat
from keyscale.jobs.protocol.messages import DriverMetrics, Heartbeat
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
