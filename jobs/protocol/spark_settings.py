"""The Spark settings that the runtime relies on; importable without pyspark.

A driver's command line (`spark-submit --conf key=value ...`) has all `REQUIRED_SETTINGS`, which nothing may override.
A job's own configuration may replace `DEFAULT_SETTINGS`. Settings that are undocumented or internal are marked so; see
docs/spark-internals.md.
"""

from __future__ import annotations

from types import MappingProxyType

REQUIRED_SETTINGS = MappingProxyType(
    {
        # Adaptive execution and broadcast joins would change which partition is which subtask.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        # With these private rules, a filter that is never true (or no longer, by the clock) removes the operators
        # before and behind it from the plan, and so their tasks.
        "spark.sql.optimizer.excludedRules": (
            "org.apache.spark.sql.catalyst.optimizer.PruneFilters,"
            "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
        ),
        # Undocumented. On, the locality of map outputs outranks the placement dataset, and state wanders.
        "spark.shuffle.reduceLocality.enabled": "false",
        # A second, concurrent try of a task would open the same state twice.
        "spark.speculation": "false",
        # A reused worker keeps its imports; a new worker costs half a second.
        "spark.python.worker.reuse": "true",
        # Undocumented. With Spark's own daemon, subtasks and their open stores move between the workers of an executor.
        "spark.python.daemon.module": "keyscale.jobs.runtime.executor.worker_daemon",
        # Spark runs tasks of frames and tasks of RDDs in the same workers only if their environments are equal. Only
        # this setting differs between them: with it on, every checkpoint would close the batches' stores and open them
        # elsewhere.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        # Times in the data never depend on where a driver runs.
        "spark.sql.session.timeZone": "UTC",
        # Internal, in milliseconds. The interval at which an idle query reports that it is idle. With Spark's ten
        # seconds, a job would seem busy for that long after its last batch.
        "spark.sql.streaming.noDataProgressEventInterval": "500",
        # A query that does not stop within this time is abandoned; its commits are in the log.
        "spark.sql.streaming.stopTimeout": "60000",
        # A console progress bar makes the driver's log unreadable.
        "spark.ui.showConsoleProgress": "false",
    }
)
"""Settings that correct results and affinity need; never overridden."""

DEFAULT_SETTINGS = MappingProxyType(
    {
        "spark.ui.enabled": "false",
        # Internal. How long an idle query waits before it looks for new input. With Spark's 10 ms it lists directories
        # all the time.
        "spark.sql.streaming.pollingDelay": "50ms",
        "spark.sql.streaming.numRecentProgressUpdates": "10",
        # Undocumented. It writes Spark's checkpoint directory, which is local, ephemeral, and used by one process. The
        # default class looks for links before each rename: four short processes for each of a batch's two or three
        # files.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        # Internal. With it on, a union of one-partition frames has one partition: the shares of a Kafka sink's batch
        # would be written one after the other.
        "spark.sql.unionOutputPartitioning": "false",
        # How long a task waits for its preferred executor before it runs elsewhere.
        "spark.locality.wait": "3s",
        # With a limit of bytes (an internal setting), Spark computes a batch's size at every row, which takes as long
        # as copying it. So only rows limit a batch on its way into Python, where batches are combined by rows and
        # bytes. Lower it for rows of megabytes.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        # Spark lists more than 32 files of a batch in a job of its own, by default with a task per file, which takes
        # most of the time of a first batch after an outage.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
        "spark.log.level": "WARN",
    }
)
"""Settings that a job's configuration may replace."""

LOCAL_SETTINGS = MappingProxyType(
    {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Shuffled data is read from the host's page cache: compressing it took an eighth of a deduplication's processor
        # time.
        "spark.shuffle.compress": "false",
    }
)
"""Further settings for the master `local[...]`: Spark listens on the loopback interface only."""

JAVA_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions"
    " -XX:MetaspaceSize=256m -XX:G1HeapRegionSize=4m"
    " -Djdk.lang.Process.launchMechanism=VFORK"
    " -XX:Tier3InvocationThreshold=1000 -XX:Tier3MinInvocationThreshold=500 -XX:Tier3CompileThreshold=6000"
    " -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=10000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Java's options for drivers and executors: compile less code, collect garbage less often, start processes directly.

With Java's own thresholds, the optimising compiler takes as much processor time in a driver's first minute as the job's
records, for code that runs a few hundred times per batch. With thresholds ten times as high it takes half of that, and
hot loops are still compiled. The first compiler's thresholds are three to five times Java's: it takes a third less
time, as it skips code that runs only some hundred times.

Java marks the whole heap whenever the loaded classes have grown by some megabytes, and then shrinks the heap; Spark
loads 160 MB of classes. It also marks when an object takes more than half a region. Buffers of record batches do so
with regions of 1 MB, Java's choice for a heap of a few GB.

Hadoop sets the permissions of every local file that it writes with a short process, several times per batch. Java's
helper for starting processes would double their number.
"""
