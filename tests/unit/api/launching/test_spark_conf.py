"""The Spark settings that a job may choose."""

from __future__ import annotations

import pytest

from keyscale.api.errors import SparkConfNotAllowedError
from keyscale.api.launching.spark_conf import ALLOWED_KEYS, check_spark_conf


@pytest.mark.parametrize("value", ["2g", "0.6", "FAIR", "1000", "10-s", "a_b", "x" * 100])
def test_a_plain_value_of_any_allowed_key_is_accepted(value: str) -> None:
    check_spark_conf(dict.fromkeys(ALLOWED_KEYS, value))


def test_keys_that_are_not_on_the_list_are_named_up_to_five_of_them_and_shortened() -> None:
    check_spark_conf({})
    keys = [f"spark.{letter}" + letter * 200 for letter in "fedcba"]
    with pytest.raises(SparkConfNotAllowedError) as refused:
        check_spark_conf({**dict.fromkeys(keys, "1"), "spark.driver.memory": "2g"})
    named = ", ".join(key[:100] for key in sorted(keys)[:5])
    assert str(refused.value).startswith(f"not allowed: {named}")
    assert "spark.f" not in str(refused.value)


@pytest.mark.parametrize("value", ["", ".", "-", "_", "a b", "$(id)", "a/b", "ä", "x" * 101, "1\n"])
def test_a_value_that_is_no_plain_word_is_refused_with_its_key(value: str) -> None:
    with pytest.raises(SparkConfNotAllowedError, match=r"spark\.driver\.memory"):
        check_spark_conf({"spark.executor.memory": "2g", "spark.driver.memory": value})


def test_an_administrator_allows_further_keys_with_any_value_of_one_line() -> None:
    allowed = {"spark.sql.extensions", "spark.sql.catalog.*"}
    check_spark_conf(
        {"spark.sql.extensions": "io.delta.Sql,b", "spark.sql.catalog.lake": "x", "spark.sql.catalog.lake.at": "/a b"},
        allowed,
    )
    for key in ("spark.sql.extensions2", "spark.sql.catalogs", "spark.sql.catalog"):
        with pytest.raises(SparkConfNotAllowedError, match="not allowed"):
            check_spark_conf({key: "x"}, allowed)
    for value in ("a\nb", "x" * 1001):
        with pytest.raises(SparkConfNotAllowedError, match="one line"):
            check_spark_conf({"spark.sql.extensions": value}, allowed)
    with pytest.raises(SparkConfNotAllowedError, match="plain word"):
        check_spark_conf({"spark.driver.memory": "a b"}, {"spark.driver.*"})
