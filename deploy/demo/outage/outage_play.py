"""The demo's play of an outage: its course, checks and results."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from keyscale.api.cli.artifacts import upload_file

from ..demo_job import DemoJob
from ..home_processes import end_processes, processes_of
from ..published_output import read_rows
from ..reference import Check, equal
from ..verdict import Verdict
from .generator import Payments
from .timeline import Sample, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from keyscale.client.keyscale import Keyscale

    from ..progress import ProgressDisplay
    from .servers import S3Server

JOB_NAME = "payments"
TOPIC = "payments"
PROGRAM = Path(__file__).with_name("payments.py")
EVENTS = ("SCALING_DECIDED", "SCALING_MEASURED")


@dataclass(frozen=True, slots=True)
class OutageScenario:
    """The load of the demo, its job and its outage.

    Attributes:
        rate: Payments per second.
        service_ms: The time of the service for a payment.
        sink_ms: The time of the sink for a payment.
        outage_s: How long the object store is away.
        catch_up_s: The time in which the job shall process its backlog.
        quiet_s: How long the job is watched when the autoscaler is not to move it.
        parallelism: The parallelism with which the job starts, and the smallest.
        parallelism_max: The largest parallelism.
        seed: Selects the payments.
        step_timeout_s: The longest time for one step.
    """

    rate: float = 100.0
    service_ms: float = 10.0
    sink_ms: float = 0.0
    outage_s: float = 120.0
    catch_up_s: float = 30.0
    quiet_s: float = 120.0
    parallelism: int = 2
    parallelism_max: int = 8
    seed: int = 7
    step_timeout_s: float = 900.0

    @property
    def has_slow_sink(self) -> bool:
        """Whether the sink, and no outage, makes the job lag."""
        return self.sink_ms > 0

    def specification(self, artifact_id: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        """Returns the job's specification, for the request that creates it."""
        return {
            "artifact_id": artifact_id,
            "parallelism": self.parallelism,
            "parallelism_limit": self.parallelism_max,
            "parameters": {
                **parameters,
                "topic": TOPIC,
                "service_ms": str(self.service_ms),
                "sink_ms": str(self.sink_ms),
            },
            "checkpoints": {"interval_ms": 10_000, "retained_count": 3},
            "autoscaler": {
                "mode": "ACTIVE",
                "parallelism_min": self.parallelism,
                "catch_up_ms": int(1000 * self.catch_up_s),
            },
        }


@dataclass(frozen=True, slots=True)
class OutageVerdict(Verdict):
    """The verdict, with the timeline.

    Attributes:
        timeline: What has happened.
        drawing: The file of its drawing.
        verdicts: What the autoscaler said last with each verdict, in the order of its first use.
    """

    timeline: Timeline
    drawing: Path
    verdicts: Mapping[str, str]

    def show_course(self, console: Console) -> None:
        console.print("\n[bold]Timeline[/]")
        for at_s, words in self.timeline.events:
            console.print(f"  {at_s:5.0f} s  {words}", markup=False)
        console.print(f"\n[bold]Largest lag[/] {self.timeline.peak_lag:,} payments")
        console.print(f"[bold]Drawing[/] {self.drawing}")
        console.print("\n[bold]What the autoscaler said[/]")
        for verdict, message in self.verdicts.items():
            console.print(f"  {verdict:<{max(map(len, self.verdicts))}}  {message}", markup=False)


@dataclass(slots=True)
class Outage:
    """Takes the object store away from a job that scales by itself.

    Attributes:
        scenario: The scenario to run.
        s3: The object store of the control plane.
        servers: The address of the broker.
    """

    page: ClassVar[str] = f"jobs/{JOB_NAME}"
    scenario: OutageScenario
    s3: S3Server
    servers: str

    def totals(self) -> dict[str, int]:
        return {}

    def perform(self, control_plane: Keyscale, directory: Path, display: ProgressDisplay) -> OutageVerdict:
        scenario = self.scenario
        output = directory / "output"
        with Payments(self.servers, TOPIC, scenario.rate, scenario.seed) as payments:
            display.step(f"{scenario.rate:.0f} payments per second come, a tenth of them twice")
            course = _Course(control_plane, scenario, output, display)
            course.start(self.servers)
            if scenario.has_slow_sink:
                course.watch()
            else:
                course.lose_store(self.s3)
            payments.end()
            display.step("draining the job")
            course.job.drain()
        elapsed_s = display.elapsed_s()
        display.step("comparing both sinks with what was sent")
        drawing = directory / "timeline.svg"
        drawing.write_text(course.timeline.svg(), encoding="utf-8")
        checks = [*output_checks(payments, output), *course.checks()]
        return OutageVerdict(checks, elapsed_s, course.timeline, drawing, course.verdicts())


def output_checks(payments: Payments, output: Path) -> list[Check]:
    """Compares the sinks with the generator's own counts."""
    rows = read_rows(output / "payments")
    ids = Counter(row["id"] for row in rows)
    last = {(row["account"], row["window_start"]): row["payments"] for row in read_rows(output / "counts")}
    wanted = payments.counts()
    wrong = sum(last.get(key) != count for key, count in wanted.items()) + len(last.keys() - wanted.keys())
    return [
        equal("payments in the sink", len(payments.unique), len(ids)),
        equal("payments in the sink twice", 0, sum(count > 1 for count in ids.values())),
        equal("counts per account and minute", len(wanted), len(last)),
        equal("counts that are wrong", 0, wrong),
    ]


@dataclass(slots=True)
class _Course:
    """The job, and what happens to it."""

    control_plane: Keyscale
    scenario: OutageScenario
    output: Path
    display: ProgressDisplay
    job: DemoJob = field(init=False)
    timeline: Timeline = field(init=False)
    _begun_s: float = field(init=False)
    _restarts: int = 0

    def start(self, servers: str) -> None:
        """Creates and starts the job, and waits until it follows its input."""
        artifact = upload_file(self.control_plane, PROGRAM)
        wanted = self.scenario.specification(artifact["id"], {"servers": servers, "output": str(self.output)})
        created = self.control_plane.post("/v1/jobs", {"name": JOB_NAME, "spec": wanted})
        self.job = DemoJob(
            self.control_plane, created["id"], self.output / "payments", self._sample, self.scenario.step_timeout_s
        )
        what = "a slow sink" if self.scenario.has_slow_sink else "an outage of the object store"
        self.timeline = Timeline(f"A job that scales by itself, and {what}")
        self._begun_s = self.display.elapsed_s()
        self.job.start()
        self._note(f"job runs with {self.scenario.parallelism} subtasks")
        self._wait_for_verdict()

    def lose_store(self, s3: S3Server) -> None:
        """Takes the object store away for a time.

        Waits until the job has caught up and is small again.
        """
        scenario = self.scenario
        began_s = self._now_s()
        s3.go_away()
        self._note("object store goes away")
        self.job.wait("the end of the outage", lambda: self._now_s() - began_s > scenario.outage_s)
        s3.come_back()
        self.timeline.outage = began_s, self._now_s()
        self._note("it is back")
        self.job.wait("the end of the backlog", self._has_caught_up)
        self._note("the backlog is gone")
        most = self._parallelism()
        if most > scenario.parallelism:
            self.job.wait("a move down", lambda: self._parallelism() < most and self._is_settled())

    def watch(self) -> None:
        """Watches the job that lags behind."""
        until_s = self._now_s() + self.scenario.quiet_s
        self.job.wait("the end of the time", lambda: self._now_s() > until_s)
        words = "not scaled" if self._parallelism() == self.scenario.parallelism else "scaled"
        self._note(f"{words}, because the sink is slow" if self._verdict() == "SINK_SLOW" else words)

    def checks(self) -> list[Check]:
        """Checks that what happened is what the demo shows."""
        decisions = self._decisions()
        moves = [each["target"] - each["parallelism"] for each in decisions if each["operation_id"]]
        restarts = self.job.show()["status"]["restarts"]
        common = [equal("drivers that failed", 0, restarts)]
        if self.scenario.has_slow_sink:
            said = "SINK_SLOW" in self.verdicts()
            return [*common, equal("moves", 0, len(moves)), equal("the slow sink is named", 1, int(said))]
        assert self.timeline.outage is not None  # noqa: S101 - the course has ended
        during = [each.lag for each in self.timeline.samples if each.at_s < self.timeline.outage[1]]
        return [
            *common,
            equal("the outage left a backlog", 1, int(self.timeline.peak_lag > self.scenario.rate * 10)),
            equal("the lag was known in the outage", 1, int(bool(during) and during[-1] is not None)),
            equal("scaled out by itself", 1, int(any(move > 0 for move in moves))),
            equal("scaled in by itself", 1, int(any(move < 0 for move in moves))),
        ]

    def verdicts(self) -> dict[str, str]:
        """Returns what the autoscaler said last with each verdict."""
        return {each["verdict"]: each["message"] for each in reversed(self._decisions())}

    def _wait_for_verdict(self) -> None:
        """Waits until the autoscaler knows how fast the job is."""
        wanted = "SINK_SLOW" if self.scenario.has_slow_sink else "STEADY"
        self.job.wait(f"the verdict {wanted}", lambda: self._verdict() == wanted)
        self._note(f"the autoscaler says {wanted}")

    def _verdict(self) -> str | None:
        decision = self.control_plane.get(f"/v1/jobs/{self.job.id}/autoscaler")["decision"]
        return None if decision is None else str(decision["verdict"])

    def _decisions(self) -> list[dict[str, Any]]:
        answer = self.control_plane.get_list(f"/v1/jobs/{self.job.id}/autoscaler/decisions", "decisions")
        return list(answer["decisions"])

    def _now_s(self) -> float:
        return self.display.elapsed_s() - self._begun_s

    def _parallelism(self) -> int:
        return self.timeline.samples[-1].parallelism if self.timeline.samples else self.scenario.parallelism

    def _is_settled(self) -> bool:
        """Returns whether all rescales have ended."""
        path = f"/v1/jobs/{self.job.id}/operations"
        return not self.control_plane.get(path, status="IN_PROGRESS")["operations"]

    def _has_caught_up(self) -> bool:
        lag = self.timeline.samples[-1].lag
        return lag is not None and lag < self.scenario.rate * 5

    def _note(self, words: str) -> None:
        self.timeline.events.append((self._now_s(), words))
        self.display.step(words)

    def _sample(self) -> None:
        at_s = self._now_s()
        samples = self.timeline.samples
        if samples and at_s - samples[-1].at_s < 1.0:
            return
        job = self.job.show()
        restarts, why = job["status"]["restarts"], job["status"]["failure"]
        if restarts > self._restarts:
            self._restarts = restarts
            self._note(f"a driver failed: {'its process ended' if why is None else why['code']}")
        parallelism = (job["status"]["attempt"] or {}).get("parallelism") or job["spec"]["parallelism"]
        if parallelism != (before := self._parallelism()):
            self._note(f"scaled {'out' if parallelism > before else 'in'} to {parallelism} subtasks")
        samples.append(Sample(at_s, job["metrics"]["lag_records"], parallelism))


@contextmanager
def outage_play(scenario: OutageScenario, directory: Path) -> Iterator[Outage]:
    """Runs the servers of the play in an emptied directory."""
    from .servers import running_broker, running_s3_server  # noqa: PLC0415 - moto is a library of developers

    end_processes(processes_of(directory))
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    with running_s3_server() as s3, running_broker(directory, TOPIC, partitions=4) as servers:
        yield Outage(scenario, s3, servers)
