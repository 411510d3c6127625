"""An error keeps its type, its position and its traceback on the way through Spark; a user's is shown in full."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException

from keyscale.errors import KeyscaleError
from keyscale.installation import IMPORT_PATH
from keyscale.jobs.errors import SinkPublishError, TaskFailedError, UserFunctionError
from keyscale.jobs.operators.failures import (
    MESSAGE_CHARACTERS_MAX,
    CarriedFailure,
    TaskOrigin,
    described,
    exception_line,
    origin_of,
    typed_failure,
    user_code,
    user_traceback,
    with_origin,
)
from keyscale.state.errors import DiskFullError

if TYPE_CHECKING:
    from collections.abc import Iterator

ORIGIN = TaskOrigin("totals", 3, "Traceback ...")


def as_spark_raises_it(failure: Exception) -> Exception:
    return RuntimeError(
        f"Job aborted: Traceback (most recent call last):\n  ...\n{type(failure).__name__}: {failure}\n\tat org..."
    )


def test_our_errors_come_back_with_type_message_and_origin() -> None:
    came = typed_failure(as_spark_raises_it(CarriedFailure(DiskFullError("/data: no space"), ORIGIN)))
    assert type(came) is DiskFullError
    assert str(came) == "/data: no space"
    assert came.retryable
    assert origin_of(came) == ORIGIN


def test_the_origin_survives_pickling() -> None:
    came = typed_failure(as_spark_raises_it(CarriedFailure(UserFunctionError("ValueError"), ORIGIN)))
    assert origin_of(pickle.loads(pickle.dumps(came))) == ORIGIN  # noqa: S301 - pickled here


def test_messages_of_any_characters_survive() -> None:
    text = 'quote " newline \n <KEYSCALE_FAILURE> ü 日本 KEYSCALE_FAILURE<eJwB>'
    assert str(typed_failure(as_spark_raises_it(CarriedFailure(SinkPublishError(text), ORIGIN)))) == text


def test_a_text_that_only_looks_like_an_error_of_ours_does_not_hide_one() -> None:
    carried = CarriedFailure(DiskFullError("/data"), ORIGIN)
    for looks in ("KEYSCALE_FAILURE<eJwB>", "KEYSCALE_FAILURE<a>", "KEYSCALE_FAILURE<eJyrVkrOT0lVslIyVKoFABWZA3M=>"):
        came = typed_failure(RuntimeError(f"{looks} and {carried}"))
        assert (type(came), str(came), origin_of(came)) == (DiskFullError, "/data", ORIGIN)
        assert type(typed_failure(RuntimeError(looks))) is TaskFailedError


def test_a_failed_job_of_spark_within_a_users_function_is_the_error_of_its_task() -> None:
    with pytest.raises(DiskFullError, match=r"^/data$") as raised, user_code(lambda: "at record 7"):
        raise as_spark_raises_it(CarriedFailure(DiskFullError("/data"), ORIGIN))
    assert origin_of(raised.value) == ORIGIN


def test_a_traceback_of_spark_alone_is_a_failed_task() -> None:
    came = typed_failure(of_worker("/lib/pyspark/worker.py", "/lib/pyspark.zip/pyspark/rdd.py"))
    assert (type(came), str(came)) == (TaskFailedError, "Spark failed: ValueError: not a plate\n  second line")


def test_characters_that_cannot_be_stored_arrive_escaped() -> None:
    came = typed_failure(as_spark_raises_it(CarriedFailure(SinkPublishError("zero \0, half \udcff"), ORIGIN)))
    assert str(came) == r"zero \x00, half \udcff"


def test_an_error_of_ours_raised_on_the_driver_is_unchanged() -> None:
    error = SinkPublishError("x")
    assert typed_failure(error) is error
    assert origin_of(error) == TaskOrigin()


def test_any_other_exception_of_spark_is_a_failed_task() -> None:
    came = typed_failure(RuntimeError("no space left\n\tat org.apache.spark.X"))
    assert isinstance(came, TaskFailedError)
    assert str(came) == "Spark failed: RuntimeError: no space left"


LOST = (
    "An error occurred.\n: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 2.0 "
    "failed 4 times, most recent failure: Lost task 1.3 in stage 2.0 (TID 5) (localhost executor driver): "
)


@pytest.mark.parametrize(
    "cause",
    [
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).",
        "java.io.IOException: Mkdirs failed to create file:/output",
        'java.lang.NumberFormatException: For input string: "seven"',
    ],
)
def test_a_lost_task_is_reported_with_its_cause_and_without_java_s_stack(cause: str) -> None:
    text = str(typed_failure(RuntimeError(f"{LOST}{cause}\n\tat java.lang.Thread")))
    assert text == f"Spark failed: Task 1 in stage 2.0 failed 4 times by {cause}"


def test_an_error_of_sparks_expressions_is_reported_with_its_message() -> None:
    refused = PySparkException("The value 'seven'", "CAST_INVALID_INPUT", {})
    assert str(typed_failure(refused)) == "Spark failed: [CAST_INVALID_INPUT] The value 'seven'"


def of_worker(*frames: str) -> PySparkException:
    lines = "".join(f'  File "{path}", line 4, in called\n    go()\n' for path in frames)
    text = f"An exception was thrown from the Python worker:\nTraceback (most recent call last):\n{lines}"
    return PySparkException(f"{text}ValueError: not a plate\n  second line", "PYTHON_EXCEPTION", {})


def test_an_exception_of_a_udf_is_the_users_with_the_traceback_of_the_users_own_lines() -> None:
    came = typed_failure(of_worker("/lib/pyspark/worker.py", "/lib/pyspark.zip/pyspark/rdd.py", "/job.py", "/lib/x.py"))
    assert type(came) is UserFunctionError
    assert str(came) == "ValueError: not a plate\n  second line"
    shown = str(origin_of(came).user_traceback)
    assert shown.startswith('Traceback (most recent call last):\n  File "/job.py", line 4, in called')
    assert shown.endswith("ValueError: not a plate\n  second line")


def test_an_exception_of_ours_in_a_worker_is_a_failed_task_with_its_traceback() -> None:
    came = typed_failure(of_worker("/lib/pyspark/worker.py", f"{IMPORT_PATH}/keyscale/jobs/x.py", "/lib/arrow.py"))
    assert type(came) is TaskFailedError
    assert "not a plate" in str(came)
    assert "jobs/x.py" in str(origin_of(came).user_traceback)


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


def test_the_users_traceback_has_frames_types_and_messages_of_all_causes() -> None:
    text = user_traceback(caught("D-ABCD"))
    assert text.index("ValueError: cannot handle D-ABCD") < text.index("KeyError: 'D-ABCD'")
    assert "in fail_on" in text
    assert "direct cause" in text


def test_notes_and_groups_of_exceptions_are_shown() -> None:
    group = ExceptionGroup("two at once", [caught("D-ABCD"), ValueError("other")])
    group.add_note("see the manual")
    lines = {line.strip(" |") for line in user_traceback(group).split("\n")}
    assert {"see the manual", "KeyError: 'D-ABCD'", "ValueError: other"} <= lines


def test_an_exception_is_named_with_its_message() -> None:
    assert exception_line(ValueError("not a plate: D-ABCD")) == "ValueError: not a plate: D-ABCD"
    assert exception_line(ValueError()) == "ValueError"
    assert exception_line(DiskFullError("/data: no space")) == "STATE_DISK_FULL: /data: no space"


def test_an_exception_whose_message_cannot_be_made_is_still_reported() -> None:
    class Broken(Exception):  # noqa: N818 - as users name them
        def __str__(self) -> str:
            raise RuntimeError

    with pytest.raises(UserFunctionError, match=r"Broken: \(its message cannot be shown\)"), user_code():
        raise Broken


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, BaseException])
def test_what_is_raised_instead_of_an_exception_is_the_functions_failure_too(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TaskContext, "get", object)
    with pytest.raises(UserFunctionError, match=f"{kind.__name__}: 3"), user_code():
        raise kind(3)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, pytest.fail.Exception, pytest.skip.Exception])
def test_a_users_own_test_is_interrupted_failed_and_skipped_by_its_functions(kind: type[BaseException]) -> None:
    with pytest.raises(kind), user_code():
        raise kind
    with pytest.raises(UserFunctionError, match="SystemExit: 3"), user_code():
        raise SystemExit(3)


def test_a_generator_that_is_left_unfinished_does_not_fail() -> None:
    def rows() -> Iterator[int]:
        with user_code():
            yield 1
            yield 2

    read = rows()
    assert next(read) == 1
    read.close()


def test_known_secrets_are_masked_in_message_and_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYSCALE_JOB_SECRET_ORDERS", "postgresql://app:hunter2hunter2@db/orders")
    with pytest.raises(UserFunctionError) as failure, user_code():
        raise ValueError("postgresql://app:hunter2hunter2@db/orders does not answer") from ConnectionError(
            "authentication of app with 'hunter2hunter2' failed"
        )
    shown = f"{failure.value} {origin_of(failure.value).user_traceback} {CarriedFailure(failure.value, ORIGIN)}"
    assert "***** does not answer" in shown
    assert "hunter2" not in shown


def test_a_message_without_end_is_cut_in_its_middle() -> None:
    line = exception_line(ValueError("begin" + "x" * 10**6 + "end"))
    assert len(line) < 2 * MESSAGE_CHARACTERS_MAX
    assert line.startswith("ValueError: begin")
    assert "characters are left out" in line
    assert line.endswith("end")


def test_an_error_is_described_with_operator_subtask_traceback_and_advice() -> None:
    lines = described(with_origin(UserFunctionError("ValueError: x"), ORIGIN)).split("\n")
    assert lines == [
        "JOB_FUNCTION_FAILED: ValueError: x (operator totals, subtask 3)",
        "Traceback ...",
        UserFunctionError.advice,
    ]


def test_every_error_of_jobs_and_state_has_its_own_code() -> None:
    import keyscale.jobs.runtime.errors  # noqa: F401, PLC0415 - defines error classes

    def kinds(kind: type[KeyscaleError]) -> list[type[KeyscaleError]]:
        return [kind, *(one for narrower in kind.__subclasses__() for one in kinds(narrower))]

    found = kinds(KeyscaleError)
    # A class that only groups others has none.
    assert [kind for kind in found if not kind.__subclasses__() and "code" not in vars(kind)] == []
    codes = [kind.code for kind in found if "code" in vars(kind)]
    assert len(codes) == len(set(codes))
