"""The supervisor of a driver that sleeps waits for the driver, and not only for its JVM."""

from __future__ import annotations

import os

import pytest

from keyscale.api.launching import supervisor
from keyscale.jobs.spark_internals import jvm_end


@pytest.mark.parametrize(
    ("statuses", "code"),
    [([], supervisor.EXIT_ASLEEP), ([10 << 8], 10), ([0, 9], -9)],
    ids=["no child", "a child", "a killed child last"],
)
def test_the_exit_code_is_of_the_last_child(monkeypatch: pytest.MonkeyPatch, statuses: list[int], code: int) -> None:
    left = iter(statuses)

    def wait() -> tuple[int, int]:
        status = next(left, None)
        if status is None:
            raise ChildProcessError
        return 1, status

    monkeypatch.setattr(os, "wait", wait)
    assert supervisor.orphans_ended(supervisor.EXIT_ASLEEP) == code


def test_the_jvm_of_a_sleeping_driver_ends_with_the_code_that_its_supervisor_knows() -> None:
    assert jvm_end.EXIT_ASLEEP == supervisor.EXIT_ASLEEP
