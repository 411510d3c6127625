"""A sink of tables in two phases, as FileSink is one of frames."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from keyscale.jobs.sinks.sink import SinkContext


@dataclass(frozen=True, slots=True)
class RehearsedSink:
    """One JSON file per batch, `<directory>/<batch>.json`, there at once in one rename.

    A batch that is published twice from different tries, or over another one, is an error.
    """

    directory: Path
    reads_repeatedly: ClassVar[bool] = False

    def prepare(self, frame: pa.Table, context: SinkContext) -> str:
        staged = self.directory / "staged" / f"{context.batch_id}-{context.unique}.json"
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(json.dumps(frame.to_pylist()))
        return staged.name

    def publish(self, token: str) -> None:
        staged = self.directory / "staged" / token
        target = self.directory / f"{token.partition('-')[0]}.json"
        marker = target.with_suffix(".token")
        if marker.exists():
            assert marker.read_text() == token, f"{target} holds another try of the batch"
            if target.exists():
                return
        marker.write_text(token)
        staged.rename(target)

    def discard(self, token: str) -> None:
        (self.directory / "staged" / token).unlink(missing_ok=True)

    def recover(self, context: SinkContext) -> None:
        """Nothing that is staged now is ever published."""
        assert context.batch_id >= -1
        shutil.rmtree(self.directory / "staged", ignore_errors=True)

    def rows(self) -> list[dict[str, Any]]:
        """All that a reader sees, a batch after the other."""
        files = sorted(self.directory.glob("*.json"), key=lambda file: int(file.stem))
        return [row for file in files for row in json.loads(file.read_text())]
