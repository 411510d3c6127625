"""Where a job's records go. Sinks that need a client of their own are imported from their modules, or from `jobs`."""

from jobs.sinks.contract import DirectOutput, DirectSink, DirectStaging, Sink, SinkContext
from jobs.sinks.files import FileSink
from jobs.sinks.foreach_batch import ForeachBatchSink

__all__ = ["DirectOutput", "DirectSink", "DirectStaging", "FileSink", "ForeachBatchSink", "Sink", "SinkContext"]
