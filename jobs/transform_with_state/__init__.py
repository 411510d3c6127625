"""Spark's `StatefulProcessor` on our state: a class written for `transformWithState` runs as it is."""

from __future__ import annotations

from jobs.transform_with_state.initial_state import InitialState
from jobs.transform_with_state.processing import TransformWithState
from jobs.transform_with_state.record_form import RecordForm
from jobs.transform_with_state.time_mode import TimeMode

__all__ = ["InitialState", "RecordForm", "TimeMode", "TransformWithState"]
