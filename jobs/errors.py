"""Everything that can go wrong in declaring and running a job. Each code is explained in docs/errors.md."""

from __future__ import annotations

from state.errors import KeyscaleError


class JobError(KeyscaleError):
    """Root of the errors of declaring or running a job. Catch it to handle any of them."""

    code = "JOB_ERROR"
    advice = "See the job's log."


class NoEnvironmentError(JobError):
    """A job's script runs outside a driver."""

    code = "JOB_NO_ENVIRONMENT"
    domain = "user"
    advice = "Upload the script and start it as a job; it is not run with python directly."


class InvalidTopologyError(JobError):
    """What the script declared cannot run. Raised before anything runs."""

    code = "JOB_TOPOLOGY_INVALID"
    domain = "user"
    advice = "Correct the job's script as the message says."


class MissingUidError(InvalidTopologyError):
    """A stateful operator, a sink, or one of several sources has no uid, so it could not be found again."""

    code = "JOB_UID_MISSING"
    advice = 'Call .uid("a-stable-name") on the operator, sink or source.'


class DuplicateUidError(InvalidTopologyError):
    """Two sources, operators or sinks of a job have the same uid."""

    code = "JOB_UID_DUPLICATE"
    advice = "Give each source, operator and sink a uid of its own, and never reuse one for something else."


class InvalidUidError(InvalidTopologyError):
    """A uid has characters that a path in an object store may not have."""

    code = "JOB_UID_INVALID"
    advice = "Use 1 to 100 letters, digits, '.', '_' and '-', beginning with a letter or a digit."


class NoSinkError(InvalidTopologyError):
    """A job, or one of its operators, has its output go nowhere."""

    code = "JOB_NO_SINK"
    advice = "End every branch of the job with .sink_to(...)."


class UnknownColumnError(InvalidTopologyError):
    """A column that the script names is not in the stream."""

    code = "JOB_COLUMN_UNKNOWN"
    advice = "Name a column of the stream, or add it before with .with_column(...)."


class InvalidKeyError(InvalidTopologyError):
    """A key column has a type that cannot be a key."""

    code = "JOB_KEY_TYPE_UNSUPPORTED"
    advice = "Use columns of atomic types, or structs and arrays of them; a map has no order and cannot be a key."


class InvalidSchemaError(InvalidTopologyError):
    """An operator's output schema is missing, empty, or not a schema."""

    code = "JOB_SCHEMA_INVALID"
    advice = 'Declare it as {"column": "type", ...}, as a DDL string, a StructType or a pyarrow schema.'


class UnionSchemaError(InvalidTopologyError):
    """Streams that are to be one have not the same columns."""

    code = "JOB_UNION_SCHEMAS_DIFFER"
    advice = "Bring them to the same columns, in name, type and order, with .select(...) before the union."


class UnionTimestampsError(InvalidTopologyError):
    """Streams that are to be one have their event times in different columns, or some have none."""

    code = "JOB_UNION_TIMESTAMPS_DIFFER"
    advice = (
        "Give all of them timestamps from one column, or none of them and the union its own: .with_timestamps(...)."
    )


class NotStreamingError(InvalidTopologyError):
    """The input is not a streaming DataFrame."""

    code = "JOB_INPUT_NOT_STREAMING"
    advice = "Read it with env.spark.readStream."


class UserFunctionError(JobError):
    """A user's function raised while it processed a batch."""

    code = "JOB_FUNCTION_FAILED"
    domain = "user"
    advice = "Correct the function as its traceback shows; the job goes on from its latest checkpoint."


class OutputTypeError(UserFunctionError):
    """A user's function returned something that does not fit the operator's output schema."""

    code = "JOB_OUTPUT_MISMATCH"
    advice = "Return dicts, tuples or rows with exactly the columns and types that `output=` declares."


class UnknownOutputError(UserFunctionError):
    """A user's function put a record into a side output that the operator was declared without."""

    code = "JOB_OUTPUT_UNKNOWN"
    advice = "Declare every side output where the function is used: side_outputs=[tag]."


class ProcessorCallError(UserFunctionError):
    """A StatefulProcessor asked for something that its time mode or this runtime does not have."""

    code = "JOB_PROCESSOR_CALL_REFUSED"
    advice = "The message says what; choose another time mode, or do it where Spark's documentation allows it."


class OperatorStateUnavailableError(UserFunctionError):
    """A user's function asked for operator state where there is none for it."""

    code = "JOB_OPERATOR_STATE_UNAVAILABLE"
    advice = "Keep operator state in a function without dead letters, and declare each broadcast state: stream.broadcast(descriptor)."


class BroadcastTooLargeError(JobError):
    """A batch of a broadcast stream is larger than what is sent to every subtask at once."""

    code = "JOB_BROADCAST_TOO_LARGE"
    domain = "user"
    advice = (
        "Limit how much a batch reads of the broadcast source, such as by maxFilesPerTrigger or maxOffsetsPerTrigger."
    )


class BroadcastDivergedError(UserFunctionError):
    """The broadcast state of an operator is no longer the same in all subtasks."""

    code = "JOB_BROADCAST_STATE_DIVERGED"
    advice = (
        "Change broadcast state by nothing but the broadcast record and that state: not by subtask, clock or chance."
    )


class IncompleteReportsError(JobError):
    """Not exactly one task of each subtask has reported, so the batch is not committed; it is run again."""

    code = "JOB_REPORTS_INCOMPLETE"
    retryable = True
    advice = "Nothing to do, unless it repeats: then a transform runs its input more than once (a sort, a self-union, an action)."


class SinkOccupiedError(JobError):
    """A batch's place in the output already holds something that this job did not write."""

    code = "SINK_TARGET_OCCUPIED"
    domain = "user"
    advice = "Give every job, and every job that starts over, an output path of its own."


class SinkPublishError(JobError):
    """A prepared batch could not be made visible."""

    code = "SINK_PUBLISH_FAILED"
    domain = "external"
    retryable = True
    advice = "Check that the output's file system is there and writable; the job publishes the batch again at its next start."


class SinkFunctionError(JobError):
    """The user's function of a ForeachBatchSink raised."""

    code = "SINK_FUNCTION_FAILED"
    domain = "user"
    retryable = True
    advice = "Correct the function as its traceback shows."


class TaskFailedError(JobError):
    """A task in an executor failed with an error that is none of ours: a lost executor, memory, a bug."""

    code = "JOB_TASK_FAILED"
    retryable = True
    advice = "See the executor's log; the batch is run again from the last commit."


class MissingSecretError(JobError):
    """A secret that the job's script names is not in the driver's environment."""

    code = "JOB_SECRET_MISSING"
    domain = "user"
    advice = "Start the control plane with the variable that the message names; it hands those on to drivers."


class SinkRowsRefusedError(JobError):
    """The sink's system refuses rows, or the table that they are for."""

    code = "SINK_ROWS_REFUSED"
    domain = "user"
    advice = (
        "Correct the job, or the table, as the message says. A batch that is committed is published at the next start."
    )


class SinkUnavailableError(JobError):
    """The system that a sink writes to does not answer, or does not let it in."""

    code = "SINK_UNAVAILABLE"
    domain = "external"
    retryable = True
    advice = "Check its address, its credentials and its health; the batch is tried again."


class SourceFunctionError(JobError):
    """A source written in Python raised."""

    code = "SOURCE_FAILED"
    domain = "user"
    retryable = True
    advice = "Correct the source as its traceback shows; the batch is planned or read again."


class SourcePositionsError(JobError):
    """A source's positions are of another kind of source, or name splits that it does not have."""

    code = "SOURCE_POSITIONS_INVALID"
    domain = "user"
    advice = "Restore a job only with the source that it was run with; a source discovers every split that it plans."


class SourceRecordsLostError(JobError):
    """Records that the job has not read yet are gone from the source."""

    code = "SOURCE_RECORDS_LOST"
    domain = "external"
    advice = (
        "Go back to a savepoint whose positions are still there, or start the job anew; and keep records for longer."
    )


class SourceUnavailableError(JobError):
    """The system that a source reads from does not answer, or does not let it in."""

    code = "SOURCE_UNAVAILABLE"
    domain = "external"
    retryable = True
    advice = "Check its address, its credentials and its health; the job goes on from its last commit."
