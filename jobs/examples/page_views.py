"""Counts page views by page, each view once, whatever fails.

Views are delivered at least once.

The ids of a page's views and their count are state of the same key: they advance together, and are restored together.
Parameters: `input` (a directory of JSON-lines files; new files are read as they appear), `output` (a directory).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, MapStateDescriptor, StreamEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import DataStream, ProcessContext, Row, RuntimeContext

INPUT_COLUMNS = {"view_id": "string", "page": "string"}
OUTPUT_COLUMNS = pa.schema([("page", pa.string()), ("view_id", pa.string()), ("views", pa.int64())])


class CountViews(KeyedProcessFunction):
    """Counts the views of a page and remembers their ids.

    Each view therefore counts once.
    """

    def open(self, context: RuntimeContext) -> None:
        self.ids = context.get_map_state(MapStateDescriptor("view_ids", pa.string(), pa.bool_()))
        self.views = context.get_state(ValueStateDescriptor("views", pa.int64()))

    def process_element(self, view: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        if self.ids.contains(view.view_id):
            return
        views = (self.views.value() or 0) + 1
        self.ids.put(view.view_id, True)
        self.views.update(views)
        yield {"page": context.current_key, "view_id": view.view_id, "views": views}


def declare(views: DataStream) -> DataStream:
    """Returns each view that counts, with its page's new count."""
    return views.key_by("page").process(CountViews(), output=OUTPUT_COLUMNS).uid("views")


def build(env: StreamEnvironment) -> None:
    """Declares the job."""
    schema = ", ".join(f"{name} {kind}" for name, kind in INPUT_COLUMNS.items())
    files = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(env.parameters["input"])
    declare(env.stream(files)).sink_to(FileSink(env.parameters["output"], format="json")).uid("files")


if __name__ == "__main__":
    environment = StreamEnvironment.current()
    build(environment)
    environment.execute()
