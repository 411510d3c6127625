"""Only a struct of distinct simple fields is converted as a whole."""

from __future__ import annotations

import pyarrow as pa
import pytest

from keyscale.state.serializers.simple_rows import simple_row

NUMBER, TEXT = pa.field("number", pa.int64()), pa.field("text", pa.string())


@pytest.mark.parametrize(
    ("fields", "is_simple"),
    [
        ([NUMBER, TEXT], True),
        ([pa.field("not a name", pa.bool_())], True),
        ([], False),
        ([NUMBER, NUMBER], False),
        ([NUMBER, pa.field("list", pa.list_(pa.int64()))], False),
    ],
)
def test_a_struct_is_simple_if_it_has_distinct_simple_fields(fields: list[pa.Field], is_simple: bool) -> None:
    assert (simple_row(pa.struct(fields)) is not None) is is_simple
