"""Paths of a job's objects, and locations of its snapshots."""

from __future__ import annotations

from ..layout import (
    CONTROL_PLANES,
    JOB_RECORDS,
    InvalidNameError,
    Layout,
    LocationError,
    control_plane,
    job_of_manifest,
    location_of,
    recorded_job,
    split_location,
)

__all__ = [
    "CONTROL_PLANES",
    "JOB_RECORDS",
    "InvalidNameError",
    "Layout",
    "LocationError",
    "control_plane",
    "job_of_manifest",
    "location_of",
    "recorded_job",
    "split_location",
]
