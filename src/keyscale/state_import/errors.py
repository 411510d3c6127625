"""Errors of imports from other systems."""

from __future__ import annotations

from keyscale.errors import KeyscaleError


class SparkCheckpointError(KeyscaleError):
    """A directory lacks the files of a Spark query's checkpoint."""

    code = "STATE_IMPORT_CHECKPOINT_INVALID"
    domain = "user"
    advice = (
        "Give the directory that the query was started with as `checkpointLocation`. Stop the query before the import, "
        "after it has committed a batch."
    )


class FlinkSavepointError(KeyscaleError):
    """A directory lacks readable files of a Flink savepoint."""

    code = "STATE_IMPORT_SAVEPOINT_INVALID"
    domain = "user"
    advice = (
        "Give the directory of a savepoint with all of its files, as `flink savepoint --type canonical` or "
        "`flink stop --type canonical` has written it."
    )


class ImportUnsupportedError(KeyscaleError):
    """A foreign operator or source has no counterpart in a savepoint."""

    code = "STATE_IMPORT_UNSUPPORTED"
    domain = "user"
    advice = (
        "Leave the operator out with `--drop-operator ID`, so that it starts empty, and let the job read the records "
        "again that it needs. Of Flink, give a canonical savepoint in a directory on this host."
    )


class UnknownSerializerError(KeyscaleError):
    """The snapshot of a Flink serializer has an unknown class."""

    code = "STATE_IMPORT_SERIALIZER_UNKNOWN"
    domain = "user"
    advice = (
        "Let the Flink job keep its keys in a type that docs/guide/from-flink.md lists, take another savepoint, and "
        "import again; or leave the operator out with `--drop-operator`."
    )


class ImportUnmappedError(KeyscaleError):
    """The place of foreign state or positions in the program is unknown."""

    code = "STATE_IMPORT_UNMAPPED"
    domain = "user"
    advice = (
        "Name it with `--operator ID=UID`, `--source NUMBER=UID`, `--key UID COLUMN EXPRESSION` or `--value UID STATE "
        "EXPRESSION`, or leave it out with `--drop-operator ID` or `--drop-source NUMBER`; docs/guide/from-spark.md "
        "and docs/guide/from-flink.md have examples."
    )


class ImportCountsDifferError(KeyscaleError):
    """A state has another number of entries than its origin has rows."""

    code = "STATE_IMPORT_COUNTS_DIFFER"
    domain = "internal"
    advice = "Nothing was published. Stop the query or job if it still runs, and import again."


class ImportFailedError(KeyscaleError):
    """Spark cannot compute the rows of the savepoint."""

    code = "STATE_IMPORT_FAILED"
    domain = "user"
    advice = "Nothing was published. Correct the expression or the program that the message names, and import again."
