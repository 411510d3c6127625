"""The three versions of the demo's job, run without Spark: what they emit is what the replay expects."""

from __future__ import annotations

import copy
import random
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.deploy.demo.reports import Delivery, departure_reports
from keyscale.deploy.demo.upgrade.program_versions import VERSIONS, difference, edited, program, write_programs
from keyscale.deploy.demo.upgrade.replay import MISSED, is_counted_by_version_1, repeats_across, replay, sink_checks
from keyscale.testing import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from keyscale.testing import HarnessSnapshot

UPGRADED_AFTER = 900


@cache  # not while tests are collected: it reads all flights
def reports() -> list[dict[str, Any]]:
    return departure_reports(2000)


def loaded(file: Path) -> ModuleType:
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def harness_of(module: ModuleType, snapshot: HarnessSnapshot | None = None) -> OperatorHarness:
    harness = OperatorHarness(
        module.AircraftTotals(), input=module.INPUT_COLUMNS, key=["tailnum"], output=module.OUTPUT_COLUMNS
    )
    return harness if snapshot is None else harness.restored(snapshot, parallelism=3)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> list[ModuleType]:
    return [loaded(file) for file in write_programs(tmp_path_factory.mktemp("demo") / "programs")]


@pytest.fixture(scope="module")
def snapshot(modules: list[ModuleType]) -> HarnessSnapshot:
    """The state of version 1 after some reports."""
    harness = harness_of(modules[0])
    harness.process(*reports()[:UPGRADED_AFTER])
    return harness.snapshot()


@pytest.fixture(scope="module")
def rows(modules: list[ModuleType], snapshot: HarnessSnapshot) -> list[dict[str, Any]]:
    """The rows of version 1, and then of version 2 with its state, at another parallelism."""
    first = harness_of(modules[0])
    first.process(*reports()[:UPGRADED_AFTER])
    second = harness_of(modules[1], snapshot)
    second.process(*reports()[UPGRADED_AFTER:1500])
    second.process(*reports()[1500:])
    return [dict(zip(row.columns, row, strict=True)) for row in (*first.take_output(), *second.take_output())]


def test_version_2_repairs_what_version_1_counted_wrongly(rows: list[dict[str, Any]]) -> None:
    assert [check for check in sink_checks("flights", reports(), rows) if not check.holds] == []
    seen = replay(reports(), rows)
    assert (len(seen.ids[1]), len(seen.ids[2])) == (UPGRADED_AFTER, len(reports()) - UPGRADED_AFTER)
    assert seen.missed > 0
    last = {row["tailnum"]: row for row in rows if MISSED in row}
    flown = {tailnum: sum(report["tailnum"] == tailnum for report in reports()) for tailnum in last}
    assert {tailnum: row["flights"] for tailnum, row in last.items()} == flown


def test_version_1_misses_exactly_the_flights_that_left_on_time_or_were_cancelled(rows: list[dict[str, Any]]) -> None:
    counted: dict[str | None, int] = {}
    for row in rows[:UPGRADED_AFTER]:
        counted[row["tailnum"]] = row["flights"]
    assert sum(counted.values()) == sum(map(is_counted_by_version_1, reports()[:UPGRADED_AFTER])) < UPGRADED_AFTER


def test_version_3_raises_with_its_first_record(modules: list[ModuleType], snapshot: HarnessSnapshot) -> None:
    with pytest.raises(Exception, match="departure_delay") as failed:
        harness_of(modules[2], snapshot).process(reports()[UPGRADED_AFTER])
    assert isinstance(failed.value.__cause__, AttributeError)


def count_wrongly(rows: list[dict[str, Any]]) -> None:
    rows[700]["flights"] += 1


def repair_wrongly(rows: list[dict[str, Any]]) -> None:
    rows[-1][MISSED] += 1


def sum_wrongly(rows: list[dict[str, Any]]) -> None:
    rows[1800]["dep_delay_sum"] -= 1


def lose_one(rows: list[dict[str, Any]]) -> None:
    rows.pop(1000)


def double_one(rows: list[dict[str, Any]]) -> None:
    rows.append(rows[1100])


def invent_one(rows: list[dict[str, Any]]) -> None:
    rows[1200]["report_id"] = "nobody sent this"


def run_the_old_version_again(rows: list[dict[str, Any]]) -> None:
    del rows[-1][MISSED]


@pytest.mark.parametrize(
    "spoil",
    [count_wrongly, repair_wrongly, sum_wrongly, lose_one, double_one, invent_one, run_the_old_version_again],
)
def test_a_single_wrong_row_fails_a_check(
    rows: list[dict[str, Any]], spoil: Callable[[list[dict[str, Any]]], None]
) -> None:
    spoiled = copy.deepcopy(rows)
    spoil(spoiled)
    assert [check for check in sink_checks("flights", reports(), spoiled) if not check.holds]


def test_the_order_of_the_aircraft_does_not_matter(rows: list[dict[str, Any]]) -> None:
    first, second = rows[:UPGRADED_AFTER], rows[UPGRADED_AFTER:]
    for part in (first, second):
        place = {tailnum: random.Random(str(tailnum)).random() for tailnum in {row["tailnum"] for row in part}}
        part.sort(key=lambda row: place[row["tailnum"]])  # stable: the rows of an aircraft stay in order
    assert all(check.holds for check in sink_checks("flights", reports(), [*first, *second]))


def test_reports_that_come_again_after_the_upgrade_are_found() -> None:
    deliveries = [Delivery((0, 1), ()), Delivery((2,), (0,)), Delivery((3,), (1, 2)), Delivery((), (3,))]
    before = {reports()[index]["report_id"] for index in (0, 1, 2)}
    assert repeats_across(reports(), deliveries, before) == {reports()[index]["report_id"] for index in (1, 2)}


def test_versions_differ_in_few_lines_from_the_example_and_are_programs() -> None:
    for version in range(1, len(VERSIONS) + 1):
        compile(program(version), f"version {version}", "exec")
    assert next(line for line in difference(1, 2) if "int32" in line or "int64" in line).startswith("-")
    assert len(difference(2, 3)) == 2


def test_an_edit_that_does_not_fit_the_example_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly once: b"):
        edited("a b b", [("b", "c")])
