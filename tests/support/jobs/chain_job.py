"""A job whose every lost, doubled or reordered record shows: it chains hashes per key. Run by drivers under test."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row, RuntimeContext


class Chain(KeyedProcessFunction):
    """Counts a key's records and hashes each into those before it; one that was there before is dropped.

    While there is a file of the name `fault` it fails; at one parallelism alone, if the file names it.
    """

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))
        self.link = context.get_state(ValueStateDescriptor("link", pa.string()))
        self.parallelism = str(context.parallelism)

    def process_element(self, record: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        if self.fault and Path(self.fault).exists() and Path(self.fault).read_text() in {"", self.parallelism}:
            message = "the fault is there"
            raise RuntimeError(message)
        count = (self.count.value() or 0) + 1
        if record.sequence < count:
            return
        text = f"{self.link.value() or ''}|{record.sequence}|{record.nonce}"
        link = hashlib.sha256(text.encode()).hexdigest()
        self.count.update(count)
        self.link.update(link)
        yield {
            "key": context.current_key,
            "sequence": record.sequence,
            "nonce": record.nonce,
            "count": count,
            "link": link,
        }


env = StreamEnvironment.current()
source = env.spark.readStream.schema("key string, sequence bigint, nonce string").option("maxFilesPerTrigger", 1)
chain = env.stream(source.json(env.parameters["input"])).key_by("key")
links = chain.process(
    Chain(env.parameters.get("fault", "")),
    output={"key": "string", "sequence": "bigint", "nonce": "string", "count": "bigint", "link": "string"},
).uid("chain")
# A second operator behind a second shuffle: finds nothing to drop, unless the first one has let something through
# twice.
unique = links.key_by("nonce").deduplicate().uid("unique")
unique.sink_to(FileSink(env.parameters["output"], format=env.parameters["format"])).uid("files")
env.execute()
