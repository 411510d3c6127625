"""The streams that a streaming frame reads, and their kinds.

Each stream has a line in Spark's recorded offsets.

It relies on `DataFrame._jdf`, PySpark's private reference to the frame in the JVM (since Spark 1.3), and there on
Spark's analysed plan: its leaves, which leaves are streams, the name and the options of their source, and that two
frames of one stream share its leaf.

With the switch `source-inputs` off, every frame counts as a separate stream. A job whose source is a union of streams,
or with two sources that read one stream, then fails to start, and a source of another kind under an old uid is not
refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it publishes no types

from ..protocol.spark_switches import SparkUse, switched_off

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame


def inputs_up_to(frames: Sequence[DataFrame]) -> list[int]:
    """Counts the different streams up to and including each frame, in order.

    A frame may read several streams, such as a union of topics, and two frames may read the same stream.
    """
    if SparkUse.SOURCE_INPUTS in switched_off():
        return list(range(1, len(frames) + 1))
    seen: set[Any] = set()
    counts = []
    for frame in frames:
        seen.update(_streams(frame))
        counts.append(len(seen))
    return counts


def streams_of(frames: Sequence[DataFrame]) -> list[str]:
    """Returns the kind of each stream of some frames, each stream once.

    They have the order of Spark's inputs. Returns none if the streams are unknown.
    """
    if SparkUse.SOURCE_INPUTS in switched_off():
        return []
    return [_kind(leaf) for leaf in dict.fromkeys(leaf for frame in frames for leaf in _streams(frame))]


def kinds_of(frame: DataFrame) -> tuple[str, ...]:
    """Returns the kind of each stream of a frame, such as kafka.

    Returns none if the kinds are unknown.
    """
    if SparkUse.SOURCE_INPUTS in switched_off():
        return ()
    return tuple(_kind(leaf) for leaf in _streams(frame))


def names_of(frames: Sequence[DataFrame]) -> list[str]:
    """Returns Spark's name of each stream, such as `FileSource[/in]`.

    Returns none if the streams are unknown.
    """
    if SparkUse.SOURCE_INPUTS in switched_off():
        return []
    return [_name(leaf) for leaf in dict.fromkeys(leaf for frame in frames for leaf in _streams(frame))]


def options_of(frames: Sequence[DataFrame]) -> list[dict[str, str]]:
    """Returns the options of each stream, with names in lower case.

    A stream of an older interface of Spark, such as files, has none.
    """
    if SparkUse.SOURCE_INPUTS in switched_off():
        return []
    return [_options(leaf) for leaf in dict.fromkeys(leaf for frame in frames for leaf in _streams(frame))]


def _streams(frame: DataFrame) -> list[Any]:
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    return [leaf for leaf in (leaves.apply(at) for at in range(leaves.size())) if leaf.isStreaming()]


def _kind(leaf: Any) -> str:
    return _name(leaf).partition("[")[0]  # of files, the path follows


def _name(leaf: Any) -> str:
    try:
        return str(leaf.sourceName())
    except Py4JError:
        return str(leaf.getClass().getSimpleName())


def _options(leaf: Any) -> dict[str, str]:
    try:
        given = leaf.extraOptions().asCaseSensitiveMap()
    except Py4JError:
        return {}
    return {str(name).lower(): str(given[name]) for name in given}
