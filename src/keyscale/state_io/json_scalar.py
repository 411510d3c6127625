"""Numbers, texts and truth values of JSON."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa


def value_of_scalar(scalar: bool | float | str, of_type: pa.DataType) -> Any:
    """Returns a JSON scalar as a value of an unnested type.

    Raises:
        ValueError: The type cannot hold the value without loss.
    """
    if isinstance(scalar, float) and not math.isfinite(scalar):  # JSON's 1e400; infinity is written as text
        raise ValueError
    text = scalar if isinstance(scalar, str) else json.dumps(scalar)
    value = pa.array([text]).cast(of_type)[0].as_py()
    if pa.types.is_floating(of_type):
        is_overflow = math.isinf(value) and Decimal(text).is_finite()
        is_whole = text.lstrip("+-").isdigit()  # Arrow rounds large integers silently
        if is_overflow or (is_whole and int(text) != value):
            raise ValueError
    return value
