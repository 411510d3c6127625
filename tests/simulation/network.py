"""The network between drivers and control planes: messages are late, lost, unanswered, or arrive twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from keyscale.jobs.runtime.errors import AttemptOverError, ControlRefusedError, ControlUnreachableError
from tests.simulation.world import ProcessEndedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from keyscale.jobs.protocol.messages import (
        AttachRequest,
        AttachResponse,
        CheckpointReport,
        DiagnosticReport,
        Heartbeat,
        HeartbeatResponse,
        StoreCredentials,
    )
    from tests.simulation.world import Process, World

LATENCY_SECONDS = 0.005
TIMEOUT_SECONDS = 10.0


class MessageRefusedError(Exception):
    """The control plane refuses a message."""


class AttemptEndedError(Exception):
    """The control plane no longer wants the attempt."""


class ControlPlane(Protocol):
    """What answers drivers. `MessageRefusedError`, `AttemptEndedError`; any other exception is no answer."""

    def attach(self, job_id: str, attempt: int, message: AttachRequest) -> AttachResponse: ...

    def heartbeat(self, job_id: str, attempt: int, message: Heartbeat) -> HeartbeatResponse: ...

    def report_checkpoint(self, job_id: str, attempt: int, message: CheckpointReport) -> None: ...


@dataclass(slots=True)
class Network:
    """All links.

    Attributes:
        reachable: Returns a control plane that answers a host now, with its process; None: there is none.
        lost: Share of requests that never arrive.
        unanswered: Share of requests whose answer is lost.
        twice: Share of requests that arrive a second time, later.
    """

    world: World
    reachable: Callable[[Process], tuple[ControlPlane, Process] | None]
    lost: float = 0.0
    unanswered: float = 0.0
    twice: float = 0.0


@dataclass(slots=True)
class PlayedChannel:
    """In the place of `HttpControl`: a driver's way to the control planes."""

    network: Network
    process: Process
    job_id: str
    attempt: int

    def attach(self, request: AttachRequest) -> AttachResponse:
        answer: AttachResponse = self._send(
            "attach", lambda control: control.attach(self.job_id, self.attempt, request)
        )
        return answer

    def heartbeat(self, heartbeat: Heartbeat) -> HeartbeatResponse:
        answer: HeartbeatResponse = self._send(
            "heartbeat", lambda control: control.heartbeat(self.job_id, self.attempt, heartbeat)
        )
        return answer

    can_call = False

    def wait_for_call(self, revision: int, seconds: float) -> bool:
        raise NotImplementedError

    def report_checkpoint(self, report: CheckpointReport) -> None:
        self._send("report", lambda control: control.report_checkpoint(self.job_id, self.attempt, report))

    def report_diagnostic(self, report: DiagnosticReport) -> None:
        raise NotImplementedError

    def fetch_artifact(self, target: Path) -> None:
        raise NotImplementedError

    def store_credentials(self) -> StoreCredentials:
        raise NotImplementedError

    def speak_as(self, job_id: str, attempt: int, token: str) -> None:  # noqa: ARG002
        self.network.world.reach("a driver spoke for its next attempt")
        self.attempt = attempt

    def close(self) -> None:
        return

    def _send(self, kind: str, deliver: Callable[[ControlPlane], Any]) -> Any:
        world, network = self.network.world, self.network
        world.moment(f"message.{kind}.before")
        world.sleep(LATENCY_SECONDS * (0.5 + world.chance.random()))
        drawn = world.chance.random()
        if drawn < network.lost:
            world.trace.note(world, f"{kind}: lost")
            world.sleep(TIMEOUT_SECONDS)
            raise ControlUnreachableError("no answer")
        answer = self._deliver(deliver)
        if drawn < network.lost + network.twice:
            world.trace.note(world, f"{kind}: to arrive twice")
            world.after(world.chance.choice((0.5, 5.0, 30.0)), lambda: self._again(kind, deliver))
        world.moment(f"message.{kind}.delivered")
        world.sleep(LATENCY_SECONDS)
        if world.chance.random() < network.unanswered:
            world.trace.note(world, f"{kind}: the answer is lost")
            world.reach("an answer was lost")
            world.sleep(TIMEOUT_SECONDS)
            raise ControlUnreachableError("no answer")
        return answer

    def _deliver(self, deliver: Callable[[ControlPlane], Any]) -> Any:
        world = self.network.world
        found = None if self.process.host.is_cut_off else self.network.reachable(self.process)
        if found is None:
            world.sleep(1.0)
            raise ControlUnreachableError("no control plane answers")
        control, process = found
        driver, driver_process = world.current, None
        if driver is not None:  # the handler runs in the control plane's process, with its clock
            driver_process, driver.process = driver.process, process
        try:
            return deliver(control)
        except AttemptEndedError as ended:
            world.reach("a driver of an ended attempt was told so")
            raise AttemptOverError(str(ended)) from ended
        except MessageRefusedError as refused:
            raise ControlRefusedError(str(refused)) from refused
        except OSError as error:
            raise ControlUnreachableError(str(error)) from error
        except ProcessEndedError as ended:
            if world.is_over or driver_process is None or not driver_process.is_alive:
                raise
            raise ControlUnreachableError("the control plane died") from ended
        finally:
            if driver is not None and driver_process is not None:
                driver.process = driver_process

    def _again(self, kind: str, deliver: Callable[[ControlPlane], Any]) -> None:
        world = self.network.world
        found = self.network.reachable(self.process)
        if found is None:
            return
        world.trace.note(world, f"{kind}: arrives a second time")
        world.reach("a message arrived twice")

        def arrive() -> None:
            try:
                deliver(found[0])
            except (AttemptEndedError, MessageRefusedError, OSError):
                return

        world.spawn(found[1], "second delivery", arrive)
