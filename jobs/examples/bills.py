"""Running totals and daily sums of bills that arrive late.

Bills are delivered at least once and up to a week late.

A late bill corrects the sum of its day, which is emitted again. Each result has its own sink, `<output>/<result>/`;
`too_late` holds bills more than a week late. Parameters: `input` (a directory of JSON-lines files; new
files are read as they appear), `output` (a directory).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, OutputTag, StreamEnvironment, Ttl, TumblingWindows

if TYPE_CHECKING:
    from keyscale import DataStream, Row

BILL_COLUMNS = {"bill_id": "string", "at": "bigint", "account": "bigint", "cents": "bigint"}
DAY_MS = 24 * 3_600_000
LATENESS_MS = 7 * DAY_MS
TOO_LATE = OutputTag(
    "too_late",
    pa.schema([("bill_id", pa.string()), ("at", pa.int64()), ("account", pa.int64()), ("cents", pa.int64())]),
)


class Total:
    """Sums and counts bills."""

    def create_accumulator(self) -> dict[str, int]:
        return {"bills": 0, "cents": 0}

    def add(self, bill: Row, accumulator: dict[str, int], /) -> dict[str, int]:
        return {"bills": accumulator["bills"] + 1, "cents": accumulator["cents"] + bill.cents}

    def get_result(self, accumulator: dict[str, int], /) -> dict[str, Any]:
        return accumulator

    def merge(self, left: dict[str, int], right: dict[str, int], /) -> dict[str, int]:
        return {name: left[name] + right[name] for name in left}


def declare(bills: DataStream) -> dict[str, DataStream]:
    """Returns all results by name."""
    accumulator = pa.struct([("bills", pa.int64()), ("cents", pa.int64())])
    output = {"bills": "bigint", "cents": "bigint"}
    unique = bills.key_by("bill_id").deduplicate(ttl=Ttl.days(30)).uid("unique-bills")
    totals = unique.key_by("account").aggregate(Total(), accumulator=accumulator, output=output).uid("totals")
    days = (
        unique.key_by("account")
        .window(TumblingWindows(DAY_MS))
        .allowed_lateness(LATENESS_MS)
        .side_output_late_data(TOO_LATE)
        .aggregate(Total(), accumulator=accumulator, output=output)
        .uid("days")
    )
    return {"totals": totals, "days": days, "too_late": days.get_side_output(TOO_LATE)}


def build(env: StreamEnvironment) -> None:
    """Declares the job."""
    schema = ", ".join(f"{name} {kind}" for name, kind in BILL_COLUMNS.items())
    files = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(env.parameters["input"])
    for name, results in declare(env.stream(files, timestamp="at")).items():
        results.sink_to(FileSink(f"{env.parameters['output']}/{name}", format="json")).uid(f"{name}-files")


if __name__ == "__main__":
    environment = StreamEnvironment.current()
    build(environment)
    environment.execute()
