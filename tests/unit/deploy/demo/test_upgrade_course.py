"""The demo of upgrades changes its job while reports come in, and its verdict needs each change."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

import pytest
from rich.console import Console

from keyscale.deploy.demo import scenario as scenario_module
from keyscale.deploy.demo.errors import DemoError
from keyscale.deploy.demo.reports import Delivery
from keyscale.deploy.demo.scenario import UpgradeScenario
from keyscale.deploy.demo.upgrade import upgrade_course, upgrade_play
from keyscale.deploy.demo.upgrade.upgrade_course import Change, UpgradeCourse
from keyscale.deploy.demo.upgrade.upgrade_play import FATES, Upgrade, UpgradeVerdict, course_checks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCENARIO = UpgradeScenario(
    upgrade_at=0.1, delivered=(0.2, 0.4, 0.6, 0.8), files_per_phase=3, clone_parallelism=5, step_timeout_s=44.0
)
PLAN = {"compatible": True, "operators": []}


class World:
    """The control plane, the feeder and the jobs of a course; what is done to them is kept in order."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.done: list[Any] = []
        self.delivered = 10
        self.plan = PLAN
        self.ends_as = ["COMPLETED", "ROLLED_BACK"]
        self.jobs: list[Job] = []
        self.savepoints = SimpleNamespace(keep=lambda *given: self.done.append(("keep", *given)))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.done.append(("post", path, body))
        return {"id": f"job-{len(self.jobs)}"}

    def patch(self, path: str, body: dict[str, Any], *, if_match: str) -> dict[str, Any]:
        self.done.append(("patch", path, body, if_match))
        return {"plan": self.plan} if body.get("dry_run") else {"id": "the-change"}

    def get_list(self, path: str, name: str) -> dict[str, Any]:
        assert (path, name) == ("/v1/jobs/job-0/checkpoints", "history")
        found = (("later", 30), ("of the change", 20), ("earlier", 10))
        return {"history": [{"external_path": where, "batch_id": number} for where, number in found]}

    def follow(
        self, given: World, operation_id: str, on_phase: Callable[[Any], None], on_poll: Callable[[], None]
    ) -> dict[str, Any]:
        assert (given, operation_id) == (self, "the-change")
        on_poll()
        on_phase("a phase")
        self.delivered += 4
        status = self.ends_as.pop(0)
        failure = None if status == "COMPLETED" else {"code": "X", "message": "it raised"}
        result = {"result": {"location": "of the change"}, "failure": failure, "downtime_ms": None}
        return {"id": f"{status} change", "status": status, **result}

    def feeder(self, *given: Any) -> Feeder:
        self.done.append(("feeder", *given))
        return Feeder(self)

    def job(self, *given: Any) -> Job:
        self.done.append(("job", *given[1:3], given[4]))
        made = Job(self, given[1], given[2], given[3])
        self.jobs.append(made)
        return made

    def read_rows(self, output: Path, last_batch: int | None = None) -> list[dict[str, Any]]:
        assert output == self.directory / "output"
        counted = [{"tailnum": "a", "flights": 2}, {"tailnum": "b", "flights": 1}, {"tailnum": "a", "flights": 1}]
        return [*counted, {"tailnum": "b", "flights": 1}] if last_batch is None else counted[: last_batch - 18]


class Feeder:
    def __init__(self, world: World) -> None:
        self._world = world
        self._looks = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._world.done.append("the feeder ends")

    @property
    def has_ended(self) -> bool:
        self._looks += 1
        return self._looks > 1

    def delivered(self) -> int:
        return self._world.delivered

    def allow(self, share: float) -> None:
        self._world.done.append(("allow", share))

    def allow_more(self, files: int) -> None:
        self._world.done.append(("allow more", files))

    def allow_next(self, share: float) -> None:
        self._world.done.append(("allow next", share))


class Job:
    """A job whose sink gets a row with each look."""

    def __init__(self, world: World, job_id: str, output: Path, on_poll: Callable[[], None]) -> None:
        self._world, self.id, self.output, self._on_poll = world, job_id, output, on_poll
        self._rows = 100

    def _note(self, *what: Any) -> None:
        self._world.done.append((self.id, *what))

    def start(self) -> None:
        self._note("start")

    def begin_drain(self) -> None:
        self._note("drain")

    def wait_for_status(self, status: str) -> None:
        self._note(status)

    def wait_for_rows(self, wanted: int) -> None:
        self._note("rows", wanted)
        self._on_poll()

    def rows(self) -> int:
        self._rows += 1
        return self._rows

    def show(self) -> dict[str, Any]:
        return {"revision": 6, "spec": {"parallelism": 5}}

    def wait(self, what: str, observe: Callable[[], bool]) -> None:
        self._note(what)
        while not observe():
            pass


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setattr(upgrade_course, "RunningFeeder", made.feeder)
    monkeypatch.setattr(upgrade_course, "DemoJob", made.job)
    monkeypatch.setattr(upgrade_course, "follow", made.follow)
    monkeypatch.setattr(upgrade_course, "read_rows", made.read_rows)
    monkeypatch.setattr(upgrade_course, "upload_file", lambda _, file: {"id": f"id of {file.name}"})
    for name in ("summary_lines", "state_rows"):
        monkeypatch.setattr(upgrade_course, name, lambda _: [])
    monkeypatch.setattr(upgrade_course, "phase_line", str)
    return made


class Display:
    def __init__(self) -> None:
        self.steps: list[str] = []
        self.counts: list[dict[str, int]] = []
        self.console = Console(file=io.StringIO(), width=200)

    def step(self, words: str) -> None:
        self.steps.append(words)

    def update(self, counts: dict[str, int]) -> None:
        self.counts.append(counts)

    def elapsed_s(self) -> float:
        return float(len(self.steps))


def test_the_job_is_changed_twice_and_cloned_while_reports_come_in(world: World, tmp_path: Path) -> None:
    display = Display()
    course = UpgradeCourse(cast("Any", world), SCENARIO, tmp_path, 1000, cast("Any", display))
    course.run()
    parameters = {"input": str(tmp_path / "input"), "output": str(tmp_path / "output")}
    clone = {
        "name": "flights-clone",
        "restore_from": {"location": "of the change"},
        "spec": {"parallelism": 5, "parameters": {"output": str(tmp_path / "clone")}},
        "start": True,
    }
    version_2, version_3 = ({"artifact_id": f"id of flights_v{number}.py"} for number in (2, 3))
    path, revision = "/v1/jobs/job-0", '"6"'
    assert world.done == [
        ("feeder", tmp_path / "input", SCENARIO, 1000),
        ("post", "/v1/jobs", {"name": "flights", "spec": SCENARIO.specification("id of flights_v1.py", parameters)}),
        ("job", "job-0", tmp_path / "output", 44.0),
        ("job-0", "start"),
        ("job-0", "rows", 100),
        ("allow next", 0.2),
        ("allow", 0.2),
        ("patch", path, {"spec": version_2, "dry_run": True}, "*"),
        ("patch", path, {"spec": version_2, "message": "version 2: counts flights that left on time"}, revision),
        ("allow next", 0.4),
        ("allow more", 3),
        ("patch", path, {"spec": version_3, "message": "version 3: a slip"}, revision),
        ("allow next", 0.6),
        ("allow more", 3),
        ("keep", "job-0", "ROLLED_BACK change"),
        ("post", "/v1/jobs/job-0/clone", clone),
        ("job", "job-1", tmp_path / "clone", 44.0),
        ("job-1", "rows", 1),
        ("allow next", 0.8),
        ("allow more", 3),
        ("job-0", "the original to go on beside its clone"),
        ("allow", 1.0),
        ("job-0", "the feeder to deliver all reports"),
        ("job-0", "drain"),
        ("job-1", "drain"),
        ("job-0", "FINISHED"),
        ("job-1", "FINISHED"),
        "the feeder ends",
    ]
    assert [(change.answer["status"], change.files) for change in course.changes] == [
        ("COMPLETED", 4),
        ("ROLLED_BACK", 4),
    ]
    assert (course.plan, course.forked_after, course.rows_before_clone, course.rows_beside) == (PLAN, 20, 2, 2)
    assert display.counts[-1] == {"files delivered": 18, "reports in the sink": 104, "reports in the clone": 2 + 101}
    [wrong] = [words for words in display.steps if "counts wrongly" in words]
    assert "4 reports, but 3 flights" in wrong
    assert "misses the 1 that left" in wrong


@pytest.mark.parametrize(
    ("ends_as", "plan", "said"),
    [
        (["FAILED"], PLAN, "the change to version 2 ended as FAILED: .*it raised"),
        (["COMPLETED", "COMPLETED"], PLAN, "the change to version 3, which raises, ended as COMPLETED"),
        ([], {**PLAN, "compatible": False}, "version 2 cannot take over the state"),
    ],
)
def test_a_change_that_ends_otherwise_ends_the_demo(
    world: World, tmp_path: Path, ends_as: list[str], plan: dict[str, Any], said: str
) -> None:
    world.ends_as, world.plan = ends_as, plan
    course = UpgradeCourse(cast("Any", world), SCENARIO, tmp_path, 1000, cast("Any", Display()))
    with pytest.raises(DemoError, match=said):
        course.run()
    assert world.done[-1] == "the feeder ends"


def planned(**changed: str) -> dict[str, Any]:
    """Returns a plan with the wanted fates, except for some."""
    operators: dict[str, list[dict[str, str]]] = {}
    for name, fate in {**FATES, **changed}.items():
        uid, _, state = name.rpartition(".")
        operators.setdefault(uid, []).append({"name": state, "fate": fate})
    return {"operators": [{"uid": uid, "states": states} for uid, states in operators.items()]}


COUNTED = "aircraft-totals.flights"
ENDED = [Change({"status": "COMPLETED"}, 1), Change({"status": "ROLLED_BACK"}, 1)]


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, set()),
        ({"plan": planned(**{COUNTED: "KEPT"})}, {"states with the fate that the plan should name"}),
        ({"plan": planned(**{"a.b": "DROPPED"})}, {"states that the plan drops or cannot read"}),
        ({"changes": ENDED[::-1]}, {"ends of the changes"}),
        ({"changes": [ENDED[0], Change({"status": "ROLLED_BACK"}, 0)]}, {"changes during which reports came in"}),
        ({"revision": 3}, {"revision of the job at the end"}),
        ({"parallelism": 2}, {"parallelism of the clone"}),
        ({"rows_beside": 0}, {"the job went on beside its clone"}),
    ],
)
def test_each_change_has_a_check(changed: dict[str, Any], wrong: set[str]) -> None:
    given = {"plan": planned(), "changes": ENDED, "revision": 2, "parallelism": 5, "rows_beside": 1, **changed}
    course = SimpleNamespace(
        scenario=SCENARIO,
        job=SimpleNamespace(show=lambda: {"revision": given["revision"], "spec": {"parallelism": 9}}),
        clone=SimpleNamespace(show=lambda: {"revision": 9, "spec": {"parallelism": given["parallelism"]}}),
        **given,
    )
    assert {check.name for check in course_checks(cast("Any", course)) if not check.holds} == wrong


REPORTS = [{"report_id": name} for name in "abcd"]
ROWS = [{"report_id": name} for name in "aabcd"]


def test_the_play_compares_both_sinks_and_the_clones_with_the_jobs_rows_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    display = Display()
    course = SimpleNamespace(
        job=SimpleNamespace(output="output"),
        clone=SimpleNamespace(output="clone"),
        forked_after=20,
        changes=ENDED,
        run=lambda: display.step("it ran"),
    )
    made: list[Any] = []
    monkeypatch.setattr(upgrade_play, "UpgradeCourse", lambda *given: made.append(given) or course)  # type: ignore[func-returns-value]
    monkeypatch.setattr(upgrade_play, "departure_reports", lambda limit: REPORTS[:limit])
    monkeypatch.setattr(upgrade_play, "read_rows", lambda *given: [given])
    monkeypatch.setattr(upgrade_play, "sink_checks", lambda *given: [given])
    monkeypatch.setattr(upgrade_play, "course_checks", lambda given: ["of the course"] if given is course else [])
    monkeypatch.setattr(Upgrade, "_deduplication_check", lambda _, *given: ("repeats", *given))
    scenario = UpgradeScenario(reports=3)
    verdict = Upgrade(scenario).perform(cast("Any", "control plane"), tmp_path, cast("Any", display))
    assert made == [("control plane", scenario, tmp_path, 3, display)]
    reports = REPORTS[:3]
    checks: list[Any] = [
        ("flights", reports, [("output",)]),
        ("repeats", reports, [("output",)]),
        ("flights-clone", reports, [("output", 20), ("clone",)]),
        "of the course",
    ]
    assert verdict == UpgradeVerdict(checks, 1.0, [{"status": "COMPLETED"}, {"status": "ROLLED_BACK"}])


@pytest.mark.parametrize(
    ("rows", "found", "holds"),
    [("abcd", ("2", "2"), True), ("aabcd", ("2", "1"), False), ("acd", ("2", "1"), False)],
)
def test_reports_that_both_versions_got_are_in_the_sink_once(
    monkeypatch: pytest.MonkeyPatch, rows: str, found: tuple[str, str], holds: bool
) -> None:
    planned_for: list[tuple[int, int, int]] = []

    def plan(*given: int) -> list[Delivery]:
        planned_for.append(given)  # type: ignore[arg-type] # three numbers
        return [Delivery((0, 1, 2), ()), Delivery((3,), (0, 1))]

    monkeypatch.setattr(upgrade_play, "plan_deliveries", plan)
    monkeypatch.setattr(upgrade_play, "replay", lambda *_: SimpleNamespace(ids={1: {"a", "b", "c"}, 2: {"d"}}))
    play = Upgrade(UpgradeScenario(files=12, seed=5))
    check = play._deduplication_check(REPORTS, [{"report_id": name} for name in rows])
    assert (check.expected, check.found, check.holds) == (*found, holds)
    assert planned_for == [(4, 12, 5)]


def test_a_demo_without_a_report_for_both_versions_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade_play, "plan_deliveries", lambda *_: [Delivery((0, 1, 2, 3), ())])
    monkeypatch.setattr(upgrade_play, "replay", lambda *_: SimpleNamespace(ids={1: {"a"}}))
    assert not Upgrade(SCENARIO)._deduplication_check(REPORTS, ROWS).holds


def test_the_progress_of_the_upgrade_demo_has_both_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (upgrade_play, scenario_module):
        monkeypatch.setattr(module, "departure_reports", lambda limit: REPORTS[:limit])
    totals = Upgrade(UpgradeScenario(reports=2)).totals()
    assert (totals["reports in the sink"], totals["reports in the clone"]) == (2, 2)


def test_changes_are_shown_with_the_version_that_they_led_to() -> None:
    shown = Console(file=io.StringIO(), width=200)
    change = {"phases": [], "duration_ms": 5, "downtime_ms": 6}
    UpgradeVerdict([], 1.0, [{"status": "COMPLETED", **change}, {"status": "ROLLED_BACK", **change}]).show_course(shown)
    lines = cast("io.StringIO", shown.file).getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines[-2:]] == ["version 2: COMPLETED", "version 3: ROLLED_BACK"]
