"""The errors of the state package, and the root of Keyscale's error tree.

Every class carries a stable `code` that docs/errors.md explains, whose fault it is (`domain`), whether trying the same
again can help (`retryable`) and what the user can do (`advice`). An error is made of one message, so that it survives
pickling between Spark's processes; a message names states and types but never holds a user's data.
"""

from __future__ import annotations

from typing import ClassVar, Literal


class KeyscaleError(Exception):
    """Root of all errors that Keyscale raises on purpose."""

    code: ClassVar[str] = "KEYSCALE_ERROR"
    domain: ClassVar[Literal["user", "external", "internal"]] = "internal"
    retryable: ClassVar[bool] = False
    advice: ClassVar[str] = "Report this with the driver's log."


class StateError(KeyscaleError):
    """Root of the errors of the state package."""

    code = "STATE_ERROR"


class UnsupportedTypeError(StateError):
    """A column's type cannot be a key, a value, or be hashed in the chosen form."""

    code = "STATE_TYPE_UNSUPPORTED"
    domain = "user"
    advice = "Use one of the types listed in the guide, or cast the column before it becomes a key or a value."


class SerializationError(StateError):
    """A value does not fit the declared type of its state."""

    code = "STATE_VALUE_INVALID"
    domain = "user"
    advice = "Give the state a value of its declared type, or declare the type that the values have."


class CorruptValueError(StateError):
    """Stored bytes cannot be read back with the schema that wrote them."""

    code = "STATE_VALUE_CORRUPT"
    domain = "external"
    advice = "Restore from an earlier checkpoint; check the disk and memory of the host."


class PickleNotAskedForError(StateError):
    """Stored values are pickles, and nobody has said that they may be unpickled."""

    code = "STATE_PICKLE_NOT_ASKED_FOR"
    domain = "user"
    advice = "Read the state in a job that declares it as Pickled(), if you trust whoever wrote it."


class KeyTooLargeError(StateError):
    """A key, with its namespace and map key, is larger than a stored key may be."""

    code = "STATE_KEY_TOO_LARGE"
    domain = "user"
    advice = "Key by something shorter, such as a hash of the long column."


class ValueTooLargeError(StateError):
    """A value is larger than one entry may be."""

    code = "STATE_VALUE_TOO_LARGE"
    domain = "user"
    advice = "Use MapState or ListState, which store every entry apart, or keep large objects elsewhere."


class BatchTooLargeError(StateError):
    """One batch changes more state of one subtask than it may."""

    code = "STATE_BATCH_TOO_LARGE"
    domain = "user"
    advice = (
        "Let a batch read less (maxOffsetsPerTrigger, maxFilesPerTrigger), or raise the parallelism; or raise "
        "batch_entries_max or batch_bytes_max if the workers have the memory."
    )


class DescriptorError(StateError):
    """A descriptor is not valid by itself: its name, type or TTL."""

    code = "STATE_DESCRIPTOR_INVALID"
    domain = "user"
    advice = "Correct the descriptor; the message says what is wrong with it."


class StateSchemaMismatchError(StateError):
    """A state is declared in a way that its stored values, or another declaration of the name, contradict."""

    code = "STATE_SCHEMA_MISMATCH"
    domain = "user"
    advice = "Declare the state as it was, or under a new name; the message holds both schemas."


class NoCurrentKeyError(StateError):
    """Keyed state was used while no key was current."""

    code = "STATE_NO_CURRENT_KEY"
    domain = "user"
    advice = "Use keyed state only while a record or a timer is processed, or use the batch forms, which take keys."


class KeyGroupError(StateError):
    """A key group, parallelism or max parallelism is out of its bounds, or a key is not this subtask's."""

    code = "STATE_KEY_GROUP_INVALID"
    advice = "Use 1 <= parallelism <= max parallelism <= 32768; otherwise report this with the driver's log."


class StoreLockedError(StateError):
    """A RocksDB directory is held open by another process or by this one."""

    code = "STATE_STORE_LOCKED"
    domain = "external"
    retryable = True
    advice = "A lost or stopped worker still holds the directory; the state is rebuilt in another one."


class StoreCorruptError(StateError):
    """RocksDB found its own files damaged or missing."""

    code = "STATE_STORE_CORRUPT"
    domain = "external"
    retryable = True
    advice = "The local files are dropped and rebuilt from the object store; check the disk."


class DiskFullError(StateError):
    """A local directory has no space left."""

    code = "STATE_DISK_FULL"
    domain = "external"
    retryable = True
    advice = "Free space, or add a local directory on another disk; the batch is run again."


class DiskReadOnlyError(StateError):
    """A local directory cannot be written to."""

    code = "STATE_DISK_READ_ONLY"
    domain = "external"
    advice = "Give the job's user write access to the local state directory, or choose another one."


class StoreIOError(StateError):
    """The local store failed in a way that is none of the above."""

    code = "STATE_STORE_IO"
    domain = "external"
    retryable = True
    advice = "See the message for RocksDB's own words; the batch is run again on a rebuilt store."


class SettingsError(StateError, ValueError):
    """Settings of the local store that cannot work."""

    code = "STATE_SETTINGS_INVALID"
    domain = "user"
    advice = "Correct the setting; the message says what is wrong with it."


class StoreClosedError(StateError):
    """A store was used after it was closed."""

    code = "STATE_STORE_CLOSED"
    advice = "Do not keep state handles beyond the batch they were given for."
