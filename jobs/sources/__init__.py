"""Where a job's records come from, besides Spark's own sources."""

from jobs.sources.contract import Position, Source
from jobs.sources.positions import limited
from jobs.sources.stream import streaming_frame

__all__ = ["Position", "Source", "limited", "streaming_frame"]
