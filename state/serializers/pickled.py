"""Pickled values of any Python class, for states declared as `Pickled()`.

Unpickling runs code that the bytes choose. So stored bytes are never unpickled because they, or a checkpoint's own
schema, claim to be a pickle: the job that reads them must have declared the state as `Pickled()`, too.
"""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from ..errors import CorruptValueError, PickleNotAskedForError, SerializationError

_PROTOCOL = 5  # fixed, so that the stored form does not change with Python


class Pickled(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types here
    """The type of pickled values, as in `ValueStateDescriptor("model", Pickled())`.

    Prefer `Structured` or an Arrow type: pickles are large and slow, have neither batch methods nor schema evolution,
    readers of state as data see bytes, and anyone who can write to the object store can run code in the job.
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
    """Returns a value's stored form.

    Raises:
        SerializationError: The value cannot be pickled.
    """
    try:
        return pickle.dumps(value, _PROTOCOL)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise SerializationError(f"a {type(value).__name__} cannot be pickled") from error


def decode_pickle(raw: bytes, at: int) -> Any:
    """Returns the value of a state that is declared as `Pickled`.

    Raises:
        CorruptValueError: The bytes are not a pickle, or the value's class no longer exists.
    """
    try:
        return pickle.loads(memoryview(raw)[at:])  # noqa: S301 (the state is declared as pickled)
    except Exception as error:  # unpickling may raise anything
        raise CorruptValueError("stored bytes are not a readable pickle") from error


def refuse_pickle(*_: Any) -> Any:
    """Refuses pickles where no descriptor says `Pickled`.

    Raises:
        PickleNotAskedForError: Always.
    """
    raise PickleNotAskedForError(
        "the values are pickles, which only a job that declares the state as Pickled() may read"
    )
