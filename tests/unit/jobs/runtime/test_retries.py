"""An operation is tried again while its system does not answer, for as long as is allowed and needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from keyscale.jobs.errors import SinkUnavailableError
from keyscale.jobs.runtime import retries as module
from keyscale.jobs.runtime.retries import Retries, RetryingStore
from keyscale.state.objects.errors import ObjectNotFoundError, StoreUnavailableError

if TYPE_CHECKING:
    from keyscale.errors import KeyscaleError


class System:
    """A system that fails some times; a try takes its time by a played clock."""

    def __init__(self, *failures: Exception, takes_s: float = 0.0) -> None:
        self.failures, self.takes_s = [*failures], takes_s
        self.now_s, self.tries = 100.0, 0
        self.pauses: list[float] = []
        self.told: list[str | None] = []

    def __call__(self) -> str:
        self.tries += 1
        self.now_s += self.takes_s
        if self.failures:
            raise self.failures.pop(0)
        return "done"

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self.now_s += seconds

    def report(self, error: KeyscaleError | None) -> None:
        self.told.append(None if error is None else str(error))


def run(system: System, limit_ms: int, **given: Any) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: system.now_s))
        return Retries(limit_ms, sleep=system.sleep, **given).run(system, system.report)


def away(count: int) -> list[Exception]:
    return [StoreUnavailableError(f"away {at}") for at in range(count)]


def test_an_operation_that_succeeds_at_once_is_not_reported() -> None:
    system = System(takes_s=99)
    assert run(system, 0) == "done"
    assert (system.told, system.pauses) == ([], [])


def test_pauses_grow_to_five_seconds_and_the_end_of_the_wait_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    system = System(*away(9))
    assert run(system, 60_000) == "done"
    assert system.pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert system.told == [*(f"away {at}" for at in range(9)), None]
    assert caplog.messages == ["STATE_STORE_UNAVAILABLE: away 0; retrying for up to 60000 ms"]


def test_the_last_try_is_at_the_limit_which_counts_the_tries_after_the_first_failure() -> None:
    system = System(*away(99))
    with pytest.raises(StoreUnavailableError, match="away 4"):
        run(system, 1000)
    assert system.pauses == [0.1, 0.2, 0.4, 0.3]
    assert system.told == [*(f"away {at}" for at in range(4)), None]
    slow = System(*away(99), takes_s=0.5)
    with pytest.raises(StoreUnavailableError, match="away 2"):
        run(slow, 1000)
    assert (slow.pauses, slow.tries) == ([0.1, 0.2], 3), "the first try's own time does not count"


@pytest.mark.parametrize("limit_ms", [0, 60_000])
def test_a_failure_is_final_without_a_limit_or_once_the_run_has_ended(limit_ms: int) -> None:
    system = System(*away(2))
    with pytest.raises(StoreUnavailableError, match="away 0"):
        run(system, limit_ms, has_ended=lambda: limit_ms > 0)
    assert (system.tries, system.told) == (1, [])


def test_only_the_awaited_error_is_tried_again() -> None:
    system = System(SinkUnavailableError("sink"), ObjectNotFoundError("gone"))
    with pytest.raises(ObjectNotFoundError):
        run(system, 60_000, awaited=SinkUnavailableError)
    assert (system.tries, system.told) == (2, ["sink", None])
    other = System(StoreUnavailableError("store"))
    with pytest.raises(StoreUnavailableError):
        run(other, 60_000, awaited=SinkUnavailableError)
    assert (other.tries, other.told) == (1, [])


def on_read(_: int) -> None:
    return


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("put", ("path", b"data"), {}),
        ("create", ("path", b"data"), {}),
        ("get", ("path",), {}),
        ("upload", (Path("source"), "path"), {"immutable": True}),
        ("download", ("path", Path("target")), {"size_bytes": 3, "sha256": "hash"}),
        ("check", ("path",), {"size_bytes": 3, "sha256": "hash", "on_read": on_read}),
        ("copy", ("source", "target"), {}),
        ("head", ("path",), {}),
        ("delete", (["one", "two"],), {}),
        ("remove_unfinished", ("prefix", 7), {}),
        ("list", ("prefix",), {"start_after": "path"}),
    ],
)
def test_each_operation_of_a_store_is_tried_again_as_it_was_given(name: str, given: Any, named: Any) -> None:
    called: list[Any] = []

    def operation(*got: Any, **got_named: Any) -> str:
        called.append((got, got_named))
        if len(called) == 1 and name != "list":
            raise StoreUnavailableError("away")
        return "result"

    store = SimpleNamespace(url="file:///store", get_bytes_max=5, **{name: operation})
    retrying = RetryingStore(cast("Any", store), Retries(60_000, sleep=lambda _: None))
    assert (retrying.url, retrying.get_bytes_max) == ("file:///store", 5)
    fresh = (iter(given[0]),) if name == "delete" else given  # the paths may come one by one
    result = getattr(retrying, name)(*fresh, **named)
    assert called == [(given, named)] * (1 if name == "list" else 2)
    assert result == (None if name in {"put", "create", "upload", "download", "check", "copy", "delete"} else "result")
