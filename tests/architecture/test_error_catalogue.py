"""Every error that a user can meet is explained in docs/errors.md, and nothing there explains an error that is gone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from keyscale.jobs.protocol.restart import FATAL_CODES
from tests.support.error_catalogue import PAGE, catalogue
from tests.support.error_trees import error_classes


@pytest.fixture(scope="module")
def errors() -> list[type[BaseException]]:
    return error_classes()


def documented_codes() -> list[str]:
    return re.findall(r"^### `([A-Z0-9_]+)`$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_every_code_is_explained_and_every_explained_code_exists(errors: list[Any]) -> None:
    assert set(documented_codes()) == {error.code for error in errors}


def test_the_page_says_what_the_classes_say() -> None:
    assert PAGE.read_text(encoding="utf-8").endswith(f"\n\n{catalogue()}"), (
        "run python -m tests.support.error_catalogue"
    )


def test_no_code_is_explained_twice() -> None:
    codes = documented_codes()
    assert len(codes) == len(set(codes))


def test_an_error_says_what_it_is_whose_it_is_and_what_to_do(errors: list[Any]) -> None:
    assert [error for error in errors if not says_all(error)] == []


def says_all(error: Any) -> bool:
    return (
        re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", error.code) is not None
        and error.domain in {"user", "external", "internal"}
        and isinstance(error.retryable, bool)
        and len(error.advice) > 10
    )


@pytest.mark.parametrize("part", [{"code": "small"}, {"domain": "theirs"}, {"retryable": None}, {"advice": ""}])
def test_an_error_that_does_not_say_so_would_be_found(errors: list[Any], part: dict[str, Any]) -> None:
    assert not says_all(type("WrongError", (errors[0],), part))


def test_two_errors_share_no_code_unless_one_refines_the_other(errors: list[Any]) -> None:
    by_code: dict[str, type] = {}
    for error in errors:
        other = by_code.setdefault(error.code, error)
        assert issubclass(error, other) or issubclass(other, error), f"{error} and {other} share {error.code}"


def test_a_missing_right_is_of_a_system_outside_and_makes_no_record_a_failed_record(errors: list[Any]) -> None:
    missing = {error.code: error for error in errors if re.fullmatch(r"(SINK|STATE_\w+)_FORBIDDEN", error.code)}
    assert set(missing) == {"SINK_FORBIDDEN", "STATE_DISK_FORBIDDEN", "STATE_STORE_FORBIDDEN"}
    assert {(error.domain, error.retryable) for error in missing.values()} == {("external", False)}
    assert set(missing) <= FATAL_CODES
