"""Values of any Python class, by pickle: only for a state whose descriptor asks for it by name.

Unpickling runs code that the bytes choose. So nothing is ever unpickled because stored bytes, or a checkpoint's own schema, say
that they are a pickle: the job that reads them must have declared the state as `Pickled()` too.
"""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from state.errors import CorruptValueError, PickleNotAskedForError, SerializationError

_PROTOCOL = 5  # fixed, so that the stored form does not change with Python


class Pickled(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types here
    """The type of a state's values that are pickled, such as in `ValueStateDescriptor("model", Pickled())`.

    Prefer `Structured` or an Arrow type: pickles are large and slow, have no batch forms and no schema evolution, `state dump`
    cannot read them, and whoever can write to the object store can run code in the job.
    """

    def __init__(self) -> None:
        super().__init__(pa.binary(), "keyscale.pickle")

    def __hash__(self) -> int:
        return hash(Pickled)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Pickled, ())

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def encode_pickle(value: Any) -> bytes:
    """A value's stored form.

    Raises:
        SerializationError: It cannot be pickled.
    """
    try:
        return pickle.dumps(value, _PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        message = f"a {type(value).__name__} cannot be pickled"
        raise SerializationError(message) from error


def decode_pickle(raw: bytes, at: int) -> Any:
    """The value; only to be called for a state that was declared as `Pickled`.

    Raises:
        CorruptValueError: The bytes are no pickle, or its class is not there any more.
    """
    try:
        return pickle.loads(memoryview(raw)[at:])  # noqa: S301 (the state's descriptor asks for it)
    except Exception as error:  # unpickling may raise anything
        message = "stored bytes are no pickle that can be read"
        raise CorruptValueError(message) from error


def refuse_pickle(*_: Any) -> Any:
    """What reads and writes pickles where no descriptor has asked for them.

    Raises:
        PickleNotAskedForError: Always.
    """
    message = "the values are pickles, which are read only by a job that declares the state as Pickled()"
    raise PickleNotAskedForError(message)
