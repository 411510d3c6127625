"""Departure reports of flights, totalled per aircraft exactly once.

Reports are delivered at least once. A report that is delivered twice counts once. For each report that counts, one row
with the new totals of its aircraft is emitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from keyscale import FileSink, KeyedProcessFunction, MapStateDescriptor, StreamEnvironment, Ttl, ValueStateDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keyscale import ProcessContext, Row, RuntimeContext

INPUT_COLUMNS = {
    "report_id": "string",  # the same in every delivery of a report
    "sched_ms": "bigint",  # scheduled departure, milliseconds since the epoch
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",  # the aircraft; unknown for some flights
    "origin": "string",
    "dest": "string",
    "dep_delay": "double",  # minutes; null when the flight was cancelled
}
OUTPUT_COLUMNS = {
    "report_id": "string",
    "tailnum": "string",
    "flights": "bigint",  # reports of this aircraft so far
    "dep_delay_sum": "double",  # minutes, without cancelled flights
    "last_airport": "string",  # destination of the flight with the latest schedule so far
    "dest": "string",
    "dest_flights": "bigint",  # flights among them to this destination
}


class AircraftTotals(KeyedProcessFunction):
    """Totals flights and departure delays per aircraft.

    Remembers the last airport and counts visits by destination.
    """

    def open(self, context: RuntimeContext) -> None:
        self.flights = context.get_state(ValueStateDescriptor("flights", pa.int64()))
        self.delay_sum = context.get_state(ValueStateDescriptor("dep_delay_sum", pa.float64()))
        # The latest flight by scheduled time, then by id, so that the order of arrival does not matter.
        self.latest_ms = context.get_state(ValueStateDescriptor("latest_sched_ms", pa.int64()))
        self.latest_id = context.get_state(ValueStateDescriptor("latest_report_id", pa.string()))
        self.last_airport = context.get_state(ValueStateDescriptor("last_airport", pa.string()))
        self.by_dest = context.get_map_state(MapStateDescriptor("flights_by_dest", pa.string(), pa.int64()))

    def process_element(self, report: Row, context: ProcessContext) -> Iterator[dict[str, Any]]:
        flights = (self.flights.value() or 0) + 1
        delay_sum = (self.delay_sum.value() or 0.0) + (report.dep_delay or 0.0)
        dest_flights = (self.by_dest.get(report.dest) or 0) + 1
        last_airport = self.last_airport.value()
        if last_airport is None or (report.sched_ms, report.report_id) > (
            self.latest_ms.value(),
            self.latest_id.value(),
        ):
            last_airport = report.dest
            self.latest_ms.update(report.sched_ms)
            self.latest_id.update(report.report_id)
            self.last_airport.update(last_airport)
        self.flights.update(flights)
        self.delay_sum.update(delay_sum)
        self.by_dest.put(report.dest, dest_flights)
        yield {
            "report_id": report.report_id,
            "tailnum": context.current_key,
            "flights": flights,
            "dep_delay_sum": delay_sum,
            "last_airport": last_airport,
            "dest": report.dest,
            "dest_flights": dest_flights,
        }


def build(env: StreamEnvironment) -> None:
    """Declares the job."""
    schema = ", ".join(f"{name} {kind}" for name, kind in INPUT_COLUMNS.items())
    files = env.spark.readStream.schema(schema).option("maxFilesPerTrigger", env.parameters.get("files_per_batch", "8"))
    unique = (
        env.stream(files.json(env.parameters["input"]))
        .key_by("report_id")
        .deduplicate(ttl=Ttl.days(7))
        .uid("unique-reports")
    )
    totals = unique.key_by("tailnum").process(AircraftTotals(), output=OUTPUT_COLUMNS).uid("aircraft-totals")
    totals.sink_to(FileSink(env.parameters["output"], format="parquet")).uid("files")


if __name__ == "__main__":
    environment = StreamEnvironment.current()
    build(environment)
    environment.execute()
