"""The Spark settings that the runtime's promises rest on; importable without pyspark.

Whoever builds a driver's command line (`spark-submit --conf key=value ...`) starts from `REQUIRED_SETTINGS` and lets nobody
override them. `DEFAULT_SETTINGS` are sensible values that a job's own configuration may replace.
"""

from __future__ import annotations

from types import MappingProxyType

REQUIRED_SETTINGS = MappingProxyType(
    {
        # Adaptive execution and broadcast joins would change which partition is which subtask.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        # Else the locality of map outputs outranks the cached anchor, and state wanders between executors.
        "spark.shuffle.reduceLocality.enabled": "false",
        # A second try of a task that still runs is never needed for speed: it would open the same state twice.
        "spark.speculation": "false",
        # A worker that is reused keeps its imports; a new one costs half a second.
        "spark.python.worker.reuse": "true",
        # Else the workers of one executor exchange their subtasks, and the stores that they keep open, from batch to batch.
        "spark.python.daemon.module": "jobs.runtime.python_daemon",
        # Spark gives tasks of frames and tasks of RDDs the same workers if their environment is the same, but for this one alone it is
        # not: state that is open in one worker would be closed and opened again in the other one at every checkpoint.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        # Times in the data never depend on where a driver runs.
        "spark.sql.session.timeZone": "UTC",
        # A query that does not stop within this time is given up; the log keeps what it has committed.
        "spark.sql.streaming.stopTimeout": "60000",
        # A console progress bar makes the driver's log unreadable.
        "spark.ui.showConsoleProgress": "false",
    }
)
"""Settings without which results or affinity would be wrong; never to be overridden."""

DEFAULT_SETTINGS = MappingProxyType(
    {
        "spark.ui.enabled": "false",
        # How long an idle query waits before it looks for new input. Spark's own 10 ms lists directories without a pause.
        "spark.sql.streaming.pollingDelay": "50ms",
        "spark.sql.streaming.numRecentProgressUpdates": "10",
        # For the directory in which Spark keeps positions, which is local, of one process, and ephemeral. Its default would look for
        # links before each rename: by four processes that read one, for each of the two or three files of a batch.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        # Tasks without a preferred executor that is free wait this long for it before they run elsewhere.
        "spark.locality.wait": "3s",
        # Spark asks for the bytes of a batch at each of its rows, which takes as long as copying them: rows alone bound a batch
        # on its way into Python, where batches are put together again, by rows and by bytes. For rows of megabytes, lower it.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
        "spark.log.level": "WARN",
    }
)
"""Settings that a job's configuration may replace."""

LOCAL_SETTINGS = MappingProxyType(
    {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # What is shuffled is read from the host's page cache: to compress it took an eighth of a deduplication's processor time.
        "spark.shuffle.compress": "false",
    }
)
"""Further settings where the master is `local[...]`: nothing listens beyond the loopback interface, and nothing leaves the host."""

JAVA_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions"
    " -XX:MetaspaceSize=256m -XX:G1HeapRegionSize=4m"
    " -Djdk.lang.Process.launchMechanism=VFORK"
    " -XX:Tier3InvocationThreshold=1000 -XX:Tier3MinInvocationThreshold=500 -XX:Tier3CompileThreshold=6000"
    " -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=10000"
    " -XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""For drivers and executors: compile what is warm, a second time only what is really hot, do not look for garbage where there is
none, and start small processes without a helper.

Java's own thresholds make its optimising compiler spend as many CPU seconds in a driver's first minute as the job's records do, for
code that runs a few hundred times a batch. Ten times higher, it spends half of that, and the hot loops are still compiled. The first
compiler's thresholds are three to five times Java's: it spends a third less on code that runs some hundred times in all.

Java marks the whole heap whenever loaded classes take some more megabytes, and then makes the heap smaller; Spark loads 160 MB of
them. It begins to mark as well when something takes more than half a region, as buffers of record batches do where regions have
the 1 MB that Java gives them in a heap of a few GB.

Hadoop sets the permissions of each local file that it writes by a process of its own; there are several in a batch. Java's helper for
starting a process makes that two.
"""
