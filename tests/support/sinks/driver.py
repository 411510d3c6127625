"""Drivers of one sink without Spark: they stage, commit and publish batches, are killed before any effect, and go back.

A system that a sink writes to calls `Host.act` before each of its effects. So a test can kill the driver before each of
them in turn, and then look at what readers see.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from keyscale.identifiers import Attempt, BatchId
from keyscale.jobs.sinks.sink import SinkContext, Takeover
from keyscale.state.documents.rewind import Rewind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from keyscale.jobs.sinks.sink import Sink

JOB, UID = "job", "out"


class KilledError(BaseException):
    """The driver's process is gone: no code of ours may catch this."""


@dataclass(slots=True)
class Host:
    """The host that a driver runs on.

    Attributes:
        kill_before: The number of the effect before which the driver is killed, once; None kills it never.
        effects: The number of effects so far.
    """

    kill_before: int | None = None
    effects: int = 0

    def act(self) -> None:
        """Counts an effect outside of the driver's process."""
        self.effects += 1
        if self.effects == self.kill_before:
            raise KilledError


@dataclass(slots=True)
class SinkDriver:
    """Runs a job's batches through a sink, attempt after attempt.

    Attributes:
        make: Makes the sink of a new process.
        frame: Returns the frame of a batch in an attempt.
        committed: The last committed batch.
        tokens: The tokens of all committed batches.
        attempt: The attempt that runs, 0 before the first.
        rewinds: The rewinds in the job's history.
    """

    make: Callable[[], Sink]
    frame: Callable[[int, int], Any]
    committed: int = -1
    tokens: dict[int, str] = field(default_factory=dict)
    attempt: int = 0
    rewinds: tuple[Rewind, ...] = ()

    def run(self, last: int) -> None:
        """Runs all batches up to the last one, in as many attempts as it takes."""
        while True:
            try:
                self.run_attempt(last)
            except KilledError:
                continue
            return

    def run_attempt(self, last: int) -> Sink:
        """Runs the next attempt up to a batch; returns its sink."""
        sink = self.start()
        while self.committed < last:
            batch_id = self.committed + 1
            token = sink.prepare(self.frame(batch_id, self.attempt), self.context(batch_id))
            self.committed, self.tokens[batch_id] = batch_id, token
            sink.publish(token)
        return sink

    def start(self) -> Sink:
        """Starts the next attempt: publishes the batch that was committed last, and takes the sink over."""
        self.attempt += 1
        sink = self.make()
        start = replace(self.context(self.committed), rewinds=self.rewinds)
        if isinstance(sink, Takeover):
            sink.take_over(start)
        if self.committed in self.tokens:
            sink.publish(self.tokens[self.committed])
        sink.recover(start)
        return sink

    def go_back(self, batch_id: int) -> None:
        """Makes the next attempt begin after an earlier batch."""
        self.committed = batch_id

    def run_without_the_sink(self, batch_id: int, last: int) -> None:
        """Makes a program without the sink go back to a batch, and run up to another batch."""
        self.attempt += 1
        self.rewinds = (*self.rewinds, Rewind(Attempt(self.attempt), BatchId(batch_id)))
        self.committed, self.tokens = last, {}

    def context(self, batch_id: int) -> SinkContext:
        return SinkContext(JOB, UID, batch_id, self.attempt, f"{self.attempt:08x}{batch_id:04x}")


def every_kill(play: Callable[[Host], Any]) -> Iterator[tuple[int, Any]]:
    """Plays once without a kill, then once with a kill before each effect; yields its number and the result."""
    whole = Host()
    yield 0, play(whole)
    for number in range(1, whole.effects + 1):
        host = Host(kill_before=number)
        result = play(host)
        assert host.effects >= number, "the kill did not happen"
        yield number, result
