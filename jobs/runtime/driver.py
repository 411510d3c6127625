"""The program that `spark-submit` runs: one process, one attempt of one job.

Start it so (the launcher and tests do):

    PYTHONPATH=<checkout> PYSPARK_PYTHON=<python> PYSPARK_DRIVER_PYTHON=<python> KEYSCALE_...=... \\
        spark-submit --master <master> --conf <key>=<value> ... <checkout>/jobs/runtime/driver.py

Environment:
    KEYSCALE_CONTROL_URL: base address of the control plane, e.g. http://127.0.0.1:8080; `/driver/...` is added to it.
    KEYSCALE_ATTEMPT_TOKEN: the attempt's bearer token; needed with KEYSCALE_CONTROL_URL.
    KEYSCALE_WORK_DIR: a local directory for Spark's checkpoint directory, state files and the artifact. Ephemeral: nothing
        is read from it that an earlier process has written. Give each attempt its own and delete it afterwards.
    KEYSCALE_ASSIGNMENT_FILE: instead of a control plane: a file that holds an `Assignment` as JSON (see control.py for the
        directory in which commands are read and reports are written).
    KEYSCALE_ARTIFACT_FILE: with KEYSCALE_ASSIGNMENT_FILE: the artifact's path.
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, ...: the object store's credentials, where it is s3://.

Spark settings: `REQUIRED_SETTINGS`, `DEFAULT_SETTINGS` and, for `local[...]` masters, `LOCAL_SETTINGS` of spark_settings.py.
A `local` master must allow task retries: `local[<cores>,4]`.

Exit codes: 0 stopped as told, finished, or no work; 1 failed (the reason was reported, and is in the log); 2 wrong environment;
10 fenced: another attempt has taken over, nothing is wrong.

The process ends when spark-submit's JVM ends, and the JVM when this process ends; Python workers end with the JVM.
"""
