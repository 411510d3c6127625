"""Splits have different names, and the names that earlier versions gave them are known."""

from __future__ import annotations

from itertools import product

import pytest

from keyscale.jobs.operators.split_name import name_before, split_name


@pytest.mark.parametrize(
    ("values", "name"),
    [(("topic", 3), "topic/3"), (("a/b",), "a/b"), (("a/b", "c/d"), r"a\/b/c/d"), (("a\\", None), r"a\\/None")],
)
def test_slashes_are_escaped_in_all_values_but_the_last(values: tuple[object, ...], name: str) -> None:
    assert split_name(values) == name
    assert name_before(name) == "/".join(map(str, values))


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_two_splits_never_share_a_name(columns: int) -> None:
    texts = ["".join(letters) for length in range(4) for letters in product("a/\\", repeat=length)]
    texts = texts if columns < 3 else texts[:13]
    splits = list(product(texts, repeat=columns))
    assert len({split_name(split) for split in splits}) == len(splits)
