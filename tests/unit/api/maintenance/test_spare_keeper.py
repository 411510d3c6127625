"""A keeper of spares decides by what runs on its host, and keeps none while it does not lead."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from keyscale.api.errors import LibraryInvalidError
from keyscale.api.launching.driver_start import StartPattern
from keyscale.api.launching.spare_choice import EndSpare, HostFacts, SpareFacts, StartSpare
from keyscale.api.maintenance import spare_keeper as service
from keyscale.api.maintenance.spare_keeper import SpareKeeper
from keyscale.api.settings import Settings
from keyscale.db.models import Attempt, Job
from keyscale.vocabulary import AttemptStage, DriverState

if TYPE_CHECKING:
    from pathlib import Path

PATTERNS = {letter: StartPattern((letter,), frozenset()) for letter in "abc"}


class World:
    """The spares of a host, and what its keeper reads and does."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[Any] = []
        self.running: list[Attempt] = []
        self.patterns: dict[tuple[str, int], StartPattern | Exception] = {}
        self.made: list[tuple[str, int]] = []
        self.step: Any = None
        self.settings = Settings(home=tmp_path, store_url="file:///store", spare_drivers=2, driver_memory="3g")
        living = [
            SimpleNamespace(name="s", pattern=PATTERNS["a"], is_ready=True, started_s=90.0),
            SimpleNamespace(name="t", pattern=PATTERNS["b"], is_ready=False, started_s=97.5),
        ]
        spares = SimpleNamespace(
            living=lambda: living,
            failures=4,
            failed_at_s=60.0,
            start=lambda pattern: self.steps.append(("start", pattern)),
            end=lambda name: self.steps.append(("end", name)),
            end_all=lambda: self.steps.append("all ended"),
        )
        self.launcher: Any = SimpleNamespace(
            spares=spares,
            place="here",
            isolation=SimpleNamespace(count=0),
            start_of=self._start_of,
            sweep_spares=lambda: self.steps.append("swept"),
        )
        monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: 100.0))
        monkeypatch.setattr(service, "now_ms", lambda: 70_000)
        monkeypatch.setattr(service, "free_memory_bytes", lambda: 5 << 30)
        monkeypatch.setattr(service, "next_spare_step", lambda *given: self.steps.append(given) or self.step)
        monkeypatch.setattr(service.attempts, "list_running", self._list_running)
        monkeypatch.setattr(
            service.attempts, "list_unstarted", lambda _, states: ["u"] if self._starting(states) else []
        )
        monkeypatch.setattr(service.attempts, "count_uncommitted", lambda _, since_ms: {40_000: 2}[since_ms])
        monkeypatch.setattr(service.attempts, "restored_from", lambda _, job_id: f"restored {job_id}")
        monkeypatch.setattr(
            service.revisions, "of_attempt", lambda _, attempt: SimpleNamespace(libraries=attempt.job_id)
        )
        monkeypatch.setattr(service, "libraries_of", lambda _, names: f"libraries of {names}")
        monkeypatch.setattr(service, "grant_of", lambda job, restored: (job.id, restored))

    def _starting(self, states: Any) -> bool:
        return set(states) == {DriverState.STANDBY, DriverState.RESTORING}

    def _list_running(self, _: Any, *of: Any) -> list[Attempt]:
        assert of == ("here", 8)
        return self.running

    def _start_of(self, job: Job, revision: Any, attempt: Attempt, brought: Any, granted: Any) -> Any:
        if job.id == "spare":
            return SimpleNamespace(pattern=PATTERNS["c"])
        assert (revision.libraries, brought) == (job.id, f"libraries of {job.id}")
        assert granted == (job.id, f"restored {job.id}")
        self.made.append((job.id, attempt.number))
        pattern = self.patterns[job.id, attempt.number]
        if isinstance(pattern, Exception):
            raise pattern
        return SimpleNamespace(pattern=pattern)

    def keeper(self, **settings: Any) -> SpareKeeper:
        given = Settings(
            **{**{f: getattr(self.settings, f) for f in ("home", "store_url", "spare_drivers")}, **settings}
        )
        unused: Any = None
        return SpareKeeper(given, unused, self.launcher, unused)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("step", "done"),
    [
        (StartSpare(PATTERNS["c"]), [("start", PATTERNS["c"])]),
        (EndSpare("s", "no job is likely to take it"), [("end", "s")]),
        (None, []),
    ],
)
def test_the_next_step_follows_from_the_spares_and_the_memory_of_the_host(world: World, step: Any, done: Any) -> None:
    world.step = step
    world.keeper(driver_memory="3g").take_step([PATTERNS["a"]], 6)
    spares = [SpareFacts("s", PATTERNS["a"], True, 10.0), SpareFacts("t", PATTERNS["b"], False, 2.5)]
    facts = HostFacts(
        wanted=[PATTERNS["a"]],
        spares=spares,
        starts=6,
        heap_bytes=3 << 30,
        free_bytes=5 << 30,
        failures=4,
        failed_s=40.0,
    )
    assert world.steps == [(facts, 2), *done]


def test_the_spares_follow_the_jobs_that_run_here_and_wait_for_the_drivers_that_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Any] = []
    monkeypatch.setattr(service, "likely_starts", lambda *of: world.steps.append(of) or [PATTERNS["b"]])
    monkeypatch.setattr(SpareKeeper, "_running", lambda *_: [PATTERNS["a"]])
    monkeypatch.setattr(SpareKeeper, "take_step", lambda _, *of: taken.append(of))
    leadership: Any = SimpleNamespace(transaction=lambda: nullcontext(None))
    assert not world.keeper().work(leadership)
    assert world.steps == [([PATTERNS["a"]], PATTERNS["c"], 2)]
    assert taken == [([PATTERNS["b"]], 3)]


def test_the_starts_of_a_host_are_the_drivers_that_start_and_those_that_have_not_committed(world: World) -> None:
    session: Any = None
    assert world.keeper()._starts(session) == 3


def test_the_pattern_of_a_running_job_is_made_once_and_forgotten_with_it(world: World) -> None:
    def attempt(job_id: str, number: int, stage: AttemptStage = AttemptStage.ACTIVE) -> Attempt:
        return Attempt(job_id=job_id, number=number, stage=stage)

    session: Any = SimpleNamespace(get_one=lambda _, job_id: Job(id=job_id))
    keeper = world.keeper()
    world.patterns = {("x", 1): PATTERNS["a"], ("y", 2): LibraryInvalidError("gone"), ("z", 3): PATTERNS["b"]}
    world.running = [attempt("z", 3), attempt("y", 2), attempt("x", 1)]
    assert keeper._running(session) == [PATTERNS["b"], PATTERNS["a"]]
    world.running = [attempt("x", 1, AttemptStage.ENDED), attempt("w", 9, AttemptStage.ENDED), attempt("y", 2)]
    assert keeper._running(session) == [PATTERNS["a"]], "of an ended attempt only what is known"
    assert world.made == [("z", 3), ("y", 2), ("x", 1)]
    world.running = [attempt("z", 3)]
    assert keeper._running(session) == [PATTERNS["b"]]
    assert world.made[3:] == [("z", 3)]


def test_the_pattern_of_a_job_without_settings_needs_no_user(world: World) -> None:
    assert world.keeper()._plain == PATTERNS["c"]
    world.launcher.isolation.count = 10
    assert world.keeper()._plain is None


@pytest.mark.parametrize(
    ("settings", "keeps"),
    [
        ({}, True),
        ({"spark_master": "local-cluster[1,1,1024]"}, True),
        ({"spark_master": "spark://m:1"}, False),
        ({"spare_drivers": 0}, False),
    ],
)
def test_a_keeper_without_spares_has_no_thread_and_cleans_up_all_the_same(
    world: World, settings: dict[str, Any], *, keeps: bool
) -> None:
    keeper = world.keeper(**settings)
    thread: Any = SimpleNamespace(
        start=lambda: world.steps.append("started"), join=lambda: world.steps.append("joined")
    )
    keeper._thread = thread
    keeper.start()
    keeper.rest()
    keeper.close()
    started, joined = (["started"], ["joined"]) if keeps else ([], [])
    assert world.steps == ["swept", *started, "all ended", *joined, "all ended"]
