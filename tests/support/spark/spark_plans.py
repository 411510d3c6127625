"""How Spark plans to compute a frame."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def physical_plan(frame: DataFrame) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        frame.explain()
    return printed.getvalue()
