"""Lines of logs are text, or JSON with the fields that join the lines of a request, an operation and a job."""

from __future__ import annotations

import json
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.log_lines import (
    FIELDS_VARIABLE,
    FORMAT_VARIABLE,
    configure_logging,
    configure_worker_logging,
    formatter_of,
    log_fields,
    worker_variables,
)

if TYPE_CHECKING:
    from collections.abc import Callable

AS_JSON = {FORMAT_VARIABLE: "json", FIELDS_VARIABLE: '{"job": "j1", "attempt": 3}', "PATH": "/bin"}


def record(message: str, *arguments: object, **attributes: Any) -> logging.LogRecord:
    made = logging.LogRecord("keyscale.jobs", logging.INFO, "file.py", 7, message, arguments, None)
    made.created = 1_700_000_000.25
    made.__dict__ |= attributes
    return made


def line(made: logging.LogRecord) -> dict[str, Any]:
    text = formatter_of(AS_JSON, "").format(made)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_line_has_its_time_level_logger_message_and_the_fields_of_its_process() -> None:
    assert line(record("batch %d:\nslow", 5)) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "keyscale.jobs",
        "message": "batch 5:\nslow",
        "job": "j1",
        "attempt": 3,
    }


def test_the_fields_of_a_block_are_in_the_lines_of_its_thread_only() -> None:
    with log_fields(operation="o1", request_id=None), log_fields(attempt=4):
        inside = line(record("inside"))
        others: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: others.append(line(record("of another thread"))))
        thread.start()
        thread.join()
    assert (inside["operation"], inside["attempt"]) == ("o1", 4)
    assert "request_id" not in inside
    assert not {"operation"} & {*others[0], *line(record("outside"))}


def test_a_line_has_the_ids_of_its_record_and_leaves_unknown_ids_out() -> None:
    assert line(record("asked", request_id="r-12345678", status=202))["request_id"] == "r-12345678"
    assert "request_id" not in line(record("not asked", request_id="-"))


def test_a_users_own_fields_may_have_any_values() -> None:
    assert line(record("stored", job={"name": "orders"}, status=[200]))["status"] == [200]


def test_an_exception_is_one_field_of_the_line() -> None:
    made = record("failed", exc_info=(ValueError, ValueError("wrong\nvalue"), None))
    assert line(made)["exception"] == "ValueError: wrong\nvalue"


@pytest.mark.parametrize("variables", [{}, {FORMAT_VARIABLE: "text"}, {FIELDS_VARIABLE: "{}"}])
def test_lines_are_text_without_the_setting(variables: dict[str, str]) -> None:
    assert formatter_of(variables, "%(name)s: %(message)s").format(record("batch %d", 5)) == "keyscale.jobs: batch 5"


def test_workers_get_the_variables_of_the_log_and_no_others() -> None:
    assert worker_variables(AS_JSON) == {name: AS_JSON[name] for name in (FORMAT_VARIABLE, FIELDS_VARIABLE)}


def configured(monkeypatch: pytest.MonkeyPatch, *settings: Callable[[], None]) -> logging.Logger:
    """Returns a root logger of its own after settings."""
    made = logging.RootLogger(logging.WARNING)
    with monkeypatch.context() as patch:
        patch.setattr(logging, "root", made)
        for each in settings:
            each()
    return made


def test_a_process_logs_from_info_on_to_its_standard_error_through_its_filters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Hiding(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            return record.name != "hidden"

    forms = ("%(levelname)s %(message)s", "%(levelname)s: %(message)s")
    root = configured(monkeypatch, *(partial(configure_logging, {}, form, Hiding()) for form in forms))
    for name, level in (("shown", logging.DEBUG), ("shown", logging.INFO), ("hidden", logging.ERROR)):
        if root.isEnabledFor(level):
            root.handle(logging.LogRecord(name, level, "f.py", 1, name, (), None))
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "INFO: shown\n"), "the second setting takes the place of the first"


@pytest.mark.parametrize(("variables", "lines"), [({}, []), ({FORMAT_VARIABLE: "text"}, []), (AS_JSON, ["late"])])
def test_a_worker_logs_its_warnings_as_json_if_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variables: dict[str, str], lines: list[str]
) -> None:
    root = configured(monkeypatch, partial(configure_worker_logging, variables))
    assert len(root.handlers) == len(lines)
    assert not root.isEnabledFor(logging.INFO)
    for handler in root.handlers:
        handler.handle(record("late"))
    assert [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()] == lines


def test_a_stack_is_one_field_of_the_line() -> None:
    assert line(record("here", stack_info="Stack:\n  f()"))["stack"] == "Stack:\n  f()"
