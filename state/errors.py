"""The errors of the state package."""

from __future__ import annotations

from keyscale.errors import KeyscaleError


class StateError(KeyscaleError):
    """Root of the errors of the state package."""

    code = "STATE_ERROR"


class UnsupportedTypeError(StateError):
    """A column of this type cannot be a key or a value.

    The type has no encoding, or no hash of the chosen form.
    """

    code = "STATE_TYPE_UNSUPPORTED"
    domain = "user"
    advice = "Use one of the types listed in the guide, or cast the column before it becomes a key or a value."


class SerializationError(StateError):
    """A value is not of the declared type of its state."""

    code = "STATE_VALUE_INVALID"
    domain = "user"
    advice = "Use values of the declared type, or declare the type of the values."


class CorruptValueError(StateError):
    """Stored bytes do not match the schema that wrote them."""

    code = "STATE_VALUE_CORRUPT"
    domain = "external"
    advice = "Restore from an earlier checkpoint; check the disk and memory of the host."


class PickleNotAskedForError(StateError):
    """Stored values are pickles, and the reader has not declared `Pickled`.

    Keyscale does not unpickle such values.
    """

    code = "STATE_PICKLE_NOT_ASKED_FOR"
    domain = "user"
    advice = "If you trust the writer of the state, read it in a job that declares it as Pickled()."


class KeyTooLargeError(StateError):
    """A key, with its namespace and map key, exceeds the size limit."""

    code = "STATE_KEY_TOO_LARGE"
    domain = "user"
    advice = (
        "Use a shorter key, such as a hash of the long column. To go on without such records, process them with "
        'dead_letters=True, or call env.set_failed_records("drop") in the job.'
    )


class ValueTooLargeError(StateError):
    """A value is larger than the largest entry allowed."""

    code = "STATE_VALUE_TOO_LARGE"
    domain = "user"
    advice = "Use MapState or ListState, which store each entry separately, or keep large objects elsewhere."


class BatchTooLargeError(StateError):
    """One batch changes more state of one subtask than the limit allows."""

    code = "STATE_BATCH_TOO_LARGE"
    domain = "user"
    advice = (
        "Make each batch read less (maxOffsetsPerTrigger, maxFilesPerTrigger), or raise the parallelism; or raise "
        "batch_bytes_max."
    )


class DescriptorError(StateError):
    """A descriptor has an invalid name, type or TTL."""

    code = "STATE_DESCRIPTOR_INVALID"
    domain = "user"
    advice = "Correct the descriptor; the message says what is wrong with it."


class StateSchemaMismatchError(StateError):
    """A state's declaration contradicts its stored values or another declaration."""

    code = "STATE_SCHEMA_MISMATCH"
    domain = "user"
    advice = "Declare the state as before, or under a new name; the message shows both schemas."


class NoCurrentKeyError(StateError):
    """Keyed state was used without a current key."""

    code = "STATE_NO_CURRENT_KEY"
    domain = "user"
    advice = "Use keyed state only while processing a record or a timer, or use the batch methods, which take keys."


class KeyGroupError(StateError):
    """A key group or parallelism is out of bounds.

    Or another subtask owns the key.
    """

    code = "STATE_KEY_GROUP_INVALID"
    advice = "Use 1 <= parallelism <= max parallelism <= 32768; otherwise report this with the driver's log."


class StoreLockedError(StateError):
    """A RocksDB directory is already open, in this process or another one."""

    code = "STATE_STORE_LOCKED"
    domain = "external"
    retryable = True
    advice = "A lost or stopped worker still has the directory open; the state is rebuilt in another directory."


class StoreCorruptError(StateError):
    """RocksDB found its own files damaged or missing."""

    code = "STATE_STORE_CORRUPT"
    domain = "external"
    retryable = True
    advice = "The state is rebuilt from the object store and from verified local files; check the disk."


class DiskFullError(StateError):
    """A local directory has no space left."""

    code = "STATE_DISK_FULL"
    domain = "external"
    retryable = True
    advice = "Free space, or add a local directory on another disk; the batch runs again."


class DiskReadOnlyError(StateError):
    """A local directory cannot be written to."""

    code = "STATE_DISK_READ_ONLY"
    domain = "external"
    advice = "Give the job's user write access to the local state directory, or choose another one."


class DiskForbiddenError(DiskReadOnlyError):
    """The job's user lacks a right on a local directory."""

    code = "STATE_DISK_FORBIDDEN"
    advice = (
        "Give the user the right that the message names, for example with `chown -R USER DIRECTORY`, or choose another "
        "local state directory. Then start the job if it has FAILED (`./keyscale jobs start JOB --wait`)."
    )


class StoreIOError(StateError):
    """The local store failed for another reason."""

    code = "STATE_STORE_IO"
    domain = "external"
    retryable = True
    advice = "The message holds RocksDB's own error; the batch runs again on a rebuilt store."


class SettingsError(StateError, ValueError):
    """A setting of the local store is invalid."""

    code = "STATE_SETTINGS_INVALID"
    domain = "user"
    advice = "Correct the setting; the message says what is wrong with it."


class StoreClosedError(StateError):
    """A store was used after being closed."""

    code = "STATE_STORE_CLOSED"
    advice = "Do not keep state objects after the batch in which you obtained them."
