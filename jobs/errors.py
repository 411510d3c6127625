"""The errors of declaring and running a job. docs/errors.md explains each code."""

from __future__ import annotations

from keyscale.errors import KeyscaleError


class JobError(KeyscaleError):
    """Root of the errors of declaring or running a job.

    Catch it to handle any of them.
    """

    code = "JOB_ERROR"
    advice = "See the job's log."


class NoEnvironmentError(JobError):
    """The job's script runs outside a driver."""

    code = "JOB_NO_ENVIRONMENT"
    domain = "user"
    advice = "Upload the script and start it as a job; it cannot be run with python directly."


class InvalidTopologyError(JobError):
    """The graph that the script declares cannot run.

    Raised before anything runs.
    """

    code = "JOB_TOPOLOGY_INVALID"
    domain = "user"
    advice = "Correct the job's script as the message says."


class MissingUidError(InvalidTopologyError):
    """A stateful operator, a sink or a source has no uid.

    Without a uid, a later run cannot find its state or positions. A job's only source needs none.
    """

    code = "JOB_UID_MISSING"
    advice = 'Call .uid("a-stable-name") on the operator, sink or source.'


class DuplicateUidError(InvalidTopologyError):
    """Two sources, operators or sinks of a job have the same uid."""

    code = "JOB_UID_DUPLICATE"
    advice = "Give each source, operator and sink its own uid, and never reuse a uid for something else."


class InvalidUidError(InvalidTopologyError):
    """A uid contains characters that object store paths must not contain."""

    code = "JOB_UID_INVALID"
    advice = "Use 1 to 100 letters, digits, '.', '_' and '-'; begin with a letter or a digit."


class NoSinkError(InvalidTopologyError):
    """The job has no sink, or an operator's output reaches no sink."""

    code = "JOB_NO_SINK"
    advice = "End every branch of the job with .sink_to(...)."


class UnknownColumnError(InvalidTopologyError):
    """The script names a column that is not in the stream."""

    code = "JOB_COLUMN_UNKNOWN"
    advice = "Name a column of the stream, or first add the column with .with_column(...)."


class InvalidKeyError(InvalidTopologyError):
    """A key column's type cannot be a key."""

    code = "JOB_KEY_TYPE_UNSUPPORTED"
    advice = "Use columns of atomic types, or structs and arrays of them; a map has no order, so it cannot be a key."


class InvalidSchemaError(InvalidTopologyError):
    """An operator's output schema is missing, empty or invalid."""

    code = "JOB_SCHEMA_INVALID"
    advice = 'Declare it as {"column": "type", ...}, as a DDL string, a StructType or a pyarrow schema.'


class UnionSchemaError(InvalidTopologyError):
    """The streams of a union have different columns."""

    code = "JOB_UNION_SCHEMAS_DIFFER"
    advice = "Before the union, use .select(...) to give all streams the same columns, in name, type and order."


class UnionTimestampsError(InvalidTopologyError):
    """The streams of a union take event time from different columns.

    Also raised if only some of the streams have event time.
    """

    code = "JOB_UNION_TIMESTAMPS_DIFFER"
    advice = (
        "Take the timestamps of all streams from the same column, or set none on the streams and call"
        " .with_timestamps(...) on the union."
    )


class TooManySplitsError(JobError):
    """The split columns of a source have too many different values."""

    code = "JOB_TOO_MANY_SPLITS"
    domain = "user"
    advice = (
        "Name columns that identify the part of the source that a record comes from, such as a topic's partition, not "
        "values of the record; or pass split=() to have one watermark for the whole source."
    )


class NotPicklableError(InvalidTopologyError):
    """A function or source holds an object that cannot be pickled.

    Connections and locks are such objects.
    """

    code = "JOB_NOT_PICKLABLE"
    advice = (
        "Create the object in `open`, once per batch, or with `context.worker_resource`, once per worker; a source "
        "creates it at first use."
    )


class NotStreamingError(InvalidTopologyError):
    """The input is not a streaming DataFrame."""

    code = "JOB_INPUT_NOT_STREAMING"
    advice = "Read it with env.spark.readStream."


class UserFunctionError(JobError):
    """A user's function raised an exception while it processed a batch."""

    code = "JOB_FUNCTION_FAILED"
    domain = "user"
    advice = (
        "Correct the function where its traceback points, give the job the new program (`./keyscale jobs update JOB "
        "--file FILE`), and start it if it has FAILED (`./keyscale jobs start JOB --wait`). Its state is kept."
    )


class OutputTypeError(UserFunctionError):
    """A user's function returned a value outside the operator's output schema."""

    code = "JOB_OUTPUT_MISMATCH"
    advice = "Return dicts, tuples or rows with exactly the columns and types that `output=` declares."


class UnknownOutputError(UserFunctionError):
    """A user's function emitted a record to an undeclared side output."""

    code = "JOB_OUTPUT_UNKNOWN"
    advice = "Declare every side output where the function is used: side_outputs=[tag]."


class ProcessorCallError(UserFunctionError):
    """A StatefulProcessor made a call that its time mode or runtime forbids."""

    code = "JOB_PROCESSOR_CALL_REFUSED"
    advice = "Choose another time mode, or make the call only where Spark's documentation allows it."


class OperatorStateUnavailableError(UserFunctionError):
    """A user's function asked for operator state that is unavailable to it."""

    code = "JOB_OPERATOR_STATE_UNAVAILABLE"
    advice = (
        "Use operator state only in functions without dead letters, and declare each broadcast state:"
        " stream.broadcast(descriptor)."
    )


class BroadcastTooLargeError(JobError):
    """A batch of a broadcast stream is too large for the subtasks."""

    code = "JOB_BROADCAST_TOO_LARGE"
    domain = "user"
    advice = (
        "Limit how much of the broadcast source a batch reads, for example with maxFilesPerTrigger or"
        " maxOffsetsPerTrigger."
    )


class BroadcastDivergedError(UserFunctionError):
    """The broadcast state of an operator differs between its subtasks."""

    code = "JOB_BROADCAST_STATE_DIVERGED"
    advice = (
        "Let changes of broadcast state depend only on the broadcast record and on that state,"
        " not on the subtask, the clock or chance."
    )


class IncompleteReportsError(JobError):
    """A batch lacks a report of a subtask, or has several.

    The batch is not committed and runs again.
    """

    code = "JOB_REPORTS_INCOMPLETE"
    retryable = True
    advice = (
        "Nothing to do unless it repeats. If it does, look for a transform that runs an action on its input, such as "
        "a count, or that reads no rows of its input, such as a limit of 0; for a custom sink that does not read all "
        "rows exactly once; and for code that changes Spark settings."
    )


class SinkOccupiedError(JobError):
    """Another job or a newer attempt owns the sink's target."""

    code = "SINK_TARGET_OCCUPIED"
    domain = "user"
    advice = (
        "Give each sink of each job its own target. The message says how to take over the target of a job that will "
        "never run again. If that job is only missing because its database was lost, rebuild it with its id "
        "(`./keyscale recover`): a committed batch that is not yet published can be published by that job alone."
    )


class SinkForbiddenError(JobError):
    """The job lacks a right on the target of a sink.

    The message names the user, the target and the right.
    """

    code = "SINK_FORBIDDEN"
    domain = "external"
    advice = (
        "Give the user the right that the message names (for a directory, for example, `chown -R USER DIRECTORY`), or "
        "give the sink another target. Then start the job if it has FAILED (`./keyscale jobs start JOB --wait`)."
    )


class SinkPublishError(JobError):
    """A prepared batch could not be made visible."""

    code = "SINK_PUBLISH_FAILED"
    domain = "external"
    retryable = True
    advice = (
        "Check that the output's file system exists and that the job's user may write to it. The job publishes the "
        "batch again at its next start."
    )


class SinkFunctionError(JobError):
    """The user's function of a ForeachBatchSink raised an exception."""

    code = "SINK_FUNCTION_FAILED"
    domain = "user"
    retryable = True
    advice = "Correct the function; its traceback shows where it failed."


class TaskFailedError(JobError):
    """A task failed for a reason outside Keyscale and the user's code.

    Examples are a lost executor and lack of memory.
    """

    code = "JOB_TASK_FAILED"
    retryable = True
    advice = "See the executor's log; the batch runs again from the last commit."


class MissingSecretError(JobError):
    """The driver's environment lacks a secret that the job's script reads."""

    code = "JOB_SECRET_MISSING"
    domain = "external"
    retryable = True
    advice = "Give the secret to every replica of the control plane again, then start the job if it has FAILED."


class SecretNotNamedError(JobError):
    """The job's script reads a secret that the job does not name."""

    code = "JOB_SECRET_NOT_NAMED"
    domain = "user"
    advice = (
        "Name the secret (`./keyscale jobs update JOB --secret NAME`, with one --secret for each secret that the "
        "script reads), and start the job (`./keyscale jobs start JOB --wait`)."
    )


class SinkRowsRefusedError(JobError):
    """The sink's system refuses rows or their columns."""

    code = "SINK_ROWS_REFUSED"
    domain = "user"
    advice = (
        "Correct the job or the target as the message says, or give the sink `dead_letters`, which receive refused "
        "rows. A committed batch is published at the next start."
    )


class SinkTooSlowError(JobError):
    """A sink's transaction takes longer than the sink allows."""

    code = "SINK_TOO_SLOW"
    domain = "user"
    advice = (
        "Raise the sink's timeout_ms, and the brokers' transaction.max.timeout.ms if the new value is above it, give "
        "the job the new program (`./keyscale jobs update JOB --file FILE`), and start it if it has FAILED "
        "(`./keyscale jobs start JOB --wait`): the batch is committed, and is published at the next start. Smaller "
        "batches, or a higher parallelism, make later transactions shorter."
    )


class SinkUnavailableError(JobError):
    """A sink's system does not answer or refuses the connection.

    Raise it in a custom sink or a `ForeachBatchSink` function to make the job wait and try again.
    """

    code = "SINK_UNAVAILABLE"
    domain = "external"
    retryable = True
    advice = "Check its address, its credentials and its health. The job has waited for store_outage_max_ms."


class SourceFunctionError(JobError):
    """A source written in Python raised an exception."""

    code = "SOURCE_FAILED"
    domain = "user"
    retryable = True
    advice = "Correct the source; its traceback shows where it failed. The batch is planned or read again."


class MetricInvalidError(JobError):
    """A function declares or uses a metric against its rules."""

    code = "JOB_METRIC_INVALID"
    domain = "user"
    advice = "Correct the metric as the message says; the guide about functions has the rules and an example."


class SourcePositionsError(JobError):
    """A source's positions do not fit the source.

    They belong to another kind of source, or name splits that the source does not have.
    """

    code = "SOURCE_POSITIONS_INVALID"
    domain = "user"
    advice = "Restore a job only with the source that it ran with. A source must discover every split that it plans."


class SourceRecordsLostError(JobError):
    """The source has lost records that the job has not read yet."""

    code = "SOURCE_RECORDS_LOST"
    domain = "external"
    advice = (
        "To continue with the earliest records that still exist, start the job with --skip-lost-records; to do so "
        'always, create the source with lost_records="skip". The metric lost_records counts the lost records. Set a '
        "longer retention in the source system."
    )


class SourceUnavailableError(JobError):
    """A source's system does not answer or refuses the connection."""

    code = "SOURCE_UNAVAILABLE"
    domain = "external"
    retryable = True
    advice = "Check its address, its credentials and its health; the job continues from its last commit."
