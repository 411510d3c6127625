"""A sink's system, in memory: what is staged, what readers see, and who may publish.

The protocol is that of the product's sinks, with their own decisions (`keyscale.jobs.sinks.published`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from keyscale.jobs.errors import SinkOccupiedError, SinkPublishError, SinkUnavailableError
from keyscale.jobs.sinks.published import Published, Step, is_rewound, next_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from keyscale.jobs.sinks.sink import SinkContext
    from tests.simulation.world import Process, World

LATENCY_SECONDS = 0.005


@dataclass(slots=True)
class SinkModel:
    """The system that a sink writes to.

    Attributes:
        staged: Rows that no reader sees, by token.
        visible: Rows that readers see, by batch, with the attempt that published them.
        marker: As the sink keeps it beside its output.
        is_away: Whether it answers nobody.
        disowned: Batches that a restore has taken out of the job's history.
        on_publish: Called with each batch before readers see it.
    """

    world: World
    staged: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    visible: dict[int, tuple[int, list[tuple[int, ...]]]] = field(default_factory=dict)
    marker: Published | None = None
    is_away: bool = False
    disowned: int = 0
    on_publish: Callable[[int], None] = lambda _: None

    def sink_of(self, process: Process) -> PlayedSink:
        """Returns the sink of a process."""
        return PlayedSink(self, process)

    @property
    def rows(self) -> list[tuple[int, ...]]:
        """All that a reader sees, a batch after the other."""
        return [row for number in sorted(self.visible) for row in self.visible[number][1]]


@dataclass(slots=True)
class PlayedSink:
    """A sink of one process that writes to the model, in steps between which its process may die."""

    model: SinkModel
    process: Process
    reads_repeatedly: ClassVar[bool] = False

    def prepare(self, frame: Any, context: SinkContext) -> str:
        token = json.dumps([context.attempt, context.batch_id, context.unique])
        self._request("prepare")
        columns = [frame.column(name).to_pylist() for name in frame.schema.names]
        self.model.staged[token] = list(zip(*columns, strict=True))
        self._answer("prepared")
        return token

    def publish(self, token: str) -> None:
        attempt, batch_id, _ = json.loads(token)
        self._request("publish")
        model = self.model
        match next_step(model.marker, attempt, batch_id):
            case Step.REFUSE:
                raise SinkOccupiedError(f"batch {batch_id} of attempt {attempt} is refused by {model.marker}")
            case Step.REPLACE:
                self._take_back(-1)
            case Step.DONE:
                model.world.reach("a batch was published that was visible already")
                model.staged.pop(token, None)
                return
        if token not in model.staged:
            raise SinkPublishError(f"batch {batch_id} is neither staged nor published")
        model.on_publish(batch_id)
        model.visible[batch_id] = (attempt, model.staged.pop(token))
        model.marker = Published(max(attempt, model.marker.attempt if model.marker else 0), batch_id)
        model.world.trace.note(model.world, f"published batch {batch_id} of attempt {attempt}")
        self._answer("published")

    def discard(self, token: str) -> None:
        self._request("discard")
        self.model.staged.pop(token, None)

    def recover(self, context: SinkContext) -> None:
        self._request("recover")
        model = self.model
        if model.marker is not None and model.marker.attempt > context.attempt:
            raise SinkOccupiedError(f"attempt {context.attempt} is older than {model.marker}")
        for token in [token for token in model.staged if json.loads(token)[0] <= context.attempt]:
            del model.staged[token]
        is_left = is_rewound(model.marker, context.batch_id)
        if is_left and context.batch_id >= 0:
            self._take_back(context.batch_id)
        if not is_left or context.batch_id >= 0:
            model.marker = Published(context.attempt, context.batch_id)
        self._answer("recovered")

    def _take_back(self, batch_id: int) -> None:
        self.model.world.reach("a sink took rows back")
        for number in [number for number in self.model.visible if number > batch_id]:
            del self.model.visible[number]
            self.model.disowned += 1

    def _request(self, what: str) -> None:
        world = self.model.world
        world.moment(f"sink.{what}.before")
        world.sleep(LATENCY_SECONDS)
        if world.is_over or not self.process.is_alive:
            raise SinkUnavailableError("the process is gone")
        if self.model.is_away or self.process.host.is_cut_off:
            world.sleep(2.0)
            raise SinkUnavailableError("the sink's system does not answer")

    def _answer(self, what: str) -> None:
        self.model.world.moment(f"sink.{what}")
