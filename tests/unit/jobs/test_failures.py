"""An error keeps its type, its place and its traceback on the way through Spark, and leaves the user's data behind."""

from __future__ import annotations

import pickle

import pytest
from pyspark.errors import PySparkException

from jobs.errors import SinkPublishError, TaskFailedError, UserFunctionError
from jobs.runtime.failures import CarriedFailure, TaskOrigin, exception_line, origin_of, typed_failure, user_traceback
from state.errors import DiskFullError, KeyscaleError

ORIGIN = TaskOrigin("totals", 3, "Traceback ...")


def as_spark_raises_it(failure: Exception) -> Exception:
    return RuntimeError(
        f"Job aborted: Traceback (most recent call last):\n  ...\n{type(failure).__name__}: {failure}\n\tat org..."
    )


def test_an_error_of_ours_comes_back_with_its_type_message_and_origin() -> None:
    came = typed_failure(as_spark_raises_it(CarriedFailure(DiskFullError("/data: no space"), ORIGIN)))
    assert type(came) is DiskFullError
    assert str(came) == "/data: no space"
    assert came.retryable
    assert origin_of(came) == ORIGIN


def test_the_origin_survives_pickling() -> None:
    came = typed_failure(as_spark_raises_it(CarriedFailure(UserFunctionError("ValueError"), ORIGIN)))
    assert origin_of(pickle.loads(pickle.dumps(came))) == ORIGIN  # noqa: S301 - just pickled


def test_messages_of_any_characters_survive() -> None:
    text = 'quote " newline \n <KEYSCALE_FAILURE> ü 日本 \x00'
    assert str(typed_failure(as_spark_raises_it(CarriedFailure(SinkPublishError(text), ORIGIN)))) == text


def test_an_error_of_ours_that_was_raised_on_the_driver_stays_as_it_is() -> None:
    error = SinkPublishError("x")
    assert typed_failure(error) is error
    assert origin_of(error) == TaskOrigin()


def test_anything_else_that_spark_raises_is_a_failed_task() -> None:
    came = typed_failure(RuntimeError("secret"))
    assert isinstance(came, TaskFailedError)
    assert str(came) == "Spark failed: RuntimeError"


LOST = "An error occurred.\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 2.0 failed 4 times, most recent failure: Lost task 1.3 in stage 2.0 (TID 5) (localhost executor driver): "


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).", "Python worker exited"),
        ("java.io.IOException: Mkdirs failed to create file:/output", "java.io.IOException: Mkdirs failed to create"),
        ("java.lang.NumberFormatException: secret\n\tat java.lang", "by java.lang.NumberFormatException"),
    ],
)
def test_a_lost_task_is_told_with_its_cause_and_without_data(cause: str, told: str) -> None:
    text = str(typed_failure(RuntimeError(LOST + cause)))
    assert text.startswith("Spark failed: Task 1 in stage 2.0 failed 4 times by ")
    assert told in text
    assert "secret" not in text


def test_what_sparks_own_expressions_refuse_is_told_by_its_condition() -> None:
    refused = PySparkException("[CAST_INVALID_INPUT] The value 'secret'", "CAST_INVALID_INPUT", {})
    assert str(typed_failure(refused)) == "Spark failed: CAST_INVALID_INPUT"


def fail_on(record: str) -> None:
    raise ValueError(f"cannot handle {record}")


def caught(record: str) -> Exception:
    try:
        try:
            fail_on(record)
        except ValueError as inner:
            raise KeyError(record) from inner
    except KeyError as error:
        return error
    raise AssertionError


def test_the_users_traceback_has_frames_and_types_and_no_data() -> None:
    text = user_traceback(caught("secret"))
    assert "in fail_on" in text
    assert "ValueError" in text
    assert "KeyError" in text
    assert "which led to" in text
    assert "secret" not in text


def test_messages_that_are_about_code_are_kept() -> None:
    assert exception_line(NameError("name 'totl' is not defined")) == "NameError: name 'totl' is not defined"
    assert exception_line(ZeroDivisionError("division by zero")) == "ZeroDivisionError: division by zero"
    assert "secret" not in exception_line(ValueError("secret"))
    assert exception_line(DiskFullError("/data: no space")) == "STATE_DISK_FULL: /data: no space"


def test_a_subclass_of_an_exception_whose_message_is_about_code_may_quote_data() -> None:
    class MyTypeError(TypeError):
        pass

    assert "secret" not in exception_line(MyTypeError("secret"))


def test_every_error_of_jobs_and_state_has_a_code_of_its_own() -> None:
    import jobs.runtime.errors  # noqa: F401, PLC0415 - for its classes

    def kinds(kind: type[KeyscaleError]) -> list[type[KeyscaleError]]:
        return [kind, *(one for narrower in kind.__subclasses__() for one in kinds(narrower))]

    codes = [kind.code for kind in kinds(KeyscaleError)]
    assert len(codes) == len(set(codes))
