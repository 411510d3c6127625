"""The small pure parts: settings, statistics, redaction, the stopwatch, transitions."""

from __future__ import annotations

import pickle
import statistics
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.distribution import quantile, spread, summarize
from api.errors import SettingInvalidError, StoreUnavailableError
from api.lifecycle.states import SETTLED, TRANSITIONS, Action, is_allowed, may_follow
from api.lifecycle.stopwatch import Stopwatch
from api.redaction import redact
from api.settings import Settings
from db.statuses import JobStatus

if TYPE_CHECKING:
    from pathlib import Path


def test_settings_have_defaults_for_a_laptop(tmp_path: Path) -> None:
    settings = Settings.from_environment({"KEYSCALE_HOME": str(tmp_path)})
    assert (settings.host, settings.port, settings.spark_master) == ("127.0.0.1", 8080, "local")
    assert settings.store_url == (tmp_path / "store").as_uri()
    assert settings.database_url is None
    assert settings.control_url == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    "variables",
    [
        {"KEYSCALE_PORT": "eighty"},
        {"KEYSCALE_PORT": "70000"},
        {"KEYSCALE_PORT": "-1"},
        {"KEYSCALE_STORE_URL": "http://x"},
    ],
)
def test_a_setting_that_cannot_be_used_is_named(variables: dict[str, str]) -> None:
    with pytest.raises(SettingInvalidError, match=next(iter(variables))):
        Settings.from_environment(variables)


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:80"), ("::1", "http://[::1]:80"), ("cp.example", "http://cp.example:80")],  # noqa: S104 - nothing is bound
)
def test_drivers_reach_the_control_plane_by_an_address_that_can_be_dialled(tmp_path: Path, host: str, url: str) -> None:
    assert Settings(home=tmp_path, host=host, port=80).control_url == url


def test_an_error_survives_pickling_with_its_words() -> None:
    copy = pickle.loads(pickle.dumps(StoreUnavailableError("it is away")))  # noqa: S301 - our own bytes
    assert (copy.detail, copy.code) == ("it is away", "STORE_UNAVAILABLE")


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0, 1))
def test_a_quantile_is_between_the_extremes_and_grows_with_its_fraction(values: list[int], fraction: float) -> None:
    ordered = sorted(values)
    assert ordered[0] <= quantile(ordered, fraction) <= ordered[-1]
    assert quantile(ordered, fraction) <= quantile(ordered, min(1.0, fraction + 0.1))


@given(st.lists(st.integers(0, 10**9), min_size=1))
def test_the_median_is_the_median(values: list[int]) -> None:
    assert summarize(values).p50 == pytest.approx(statistics.median(values))


def test_of_nothing_every_figure_is_zero() -> None:
    assert set(summarize([]).model_dump().values()) == {0}
    assert spread([]).model_dump() == {"min": 0, "max": 0, "avg": 0}


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer hunter2hunter2",
        "password=hunter2hunter2 done",
        'aws_secret_access_key: "hunter2hunter2"',
        "fs.s3a.secret.key=hunter2hunter2",
        "the value hunter2hunter2 itself",
    ],
)
def test_a_secret_is_masked_wherever_it_stands(text: str) -> None:
    assert "hunter2" not in redact(text, {"AWS_SECRET_ACCESS_KEY": "hunter2hunter2"})


def test_what_is_no_secret_stays() -> None:
    text = "batch 7 took 30 ms; region=eu-central-1"
    assert redact(text, {"AWS_REGION": "eu-central-1", "AWS_SECRET_ACCESS_KEY": ""}) == text


def test_a_stopwatch_starts_over_with_each_change_and_when_nothing_was_seen_for_a_while() -> None:
    now = [100.0]
    watch = Stopwatch(lambda: now[0])
    assert watch.elapsed_ms("driver", 1) == 0
    now[0] += 5
    assert watch.elapsed_ms("driver", 1) == 5000
    assert watch.elapsed_ms("driver", 2) == 0
    now[0] += 1
    watch.reset()
    assert watch.elapsed_ms("driver", 2) == 0


def test_every_status_can_be_reached_from_the_first_one() -> None:
    reached, pending = set(), [JobStatus.CREATED]
    while pending:
        status = pending.pop()
        if status not in reached:
            reached.add(status)
            pending += TRANSITIONS[status]
    assert reached == set(JobStatus)


def test_a_settled_job_only_starts_and_only_a_settled_job_is_deleted() -> None:
    for status in JobStatus:
        assert is_allowed(Action.START, status) == is_allowed(Action.DELETE, status) == (status in SETTLED)
        assert is_allowed(Action.CANCEL, status) == (status not in SETTLED)
        if status in SETTLED:
            assert TRANSITIONS[status] == {JobStatus.SUBMITTING}
        assert may_follow(status, status)
