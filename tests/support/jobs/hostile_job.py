"""A job that tries to take what is not its own, in the driver and in a Python worker, and counts its records."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyscale import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor

if TYPE_CHECKING:
    from keyscale import ProcessContext, Row

SECRETS = "KEYSCALE_JOB_SECRET_"


def taken(files: list[str], sockets: list[str], pids: list[int]) -> list[str]:
    """Returns what this process can get of others: files, directories, sockets, memory, environments, obedience."""
    found = []
    for name in [*files, *(f"/proc/{pid}/{part}" for pid in pids for part in ("environ", "mem", "cwd/.", "root/."))]:
        try:
            found.append(f"{name}: {list(Path(name).iterdir()) if Path(name).is_dir() else len(_first_bytes(name))}")
        except OSError:
            continue
    for name in sockets:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(name)
                found.append(name)
            except OSError:
                continue
    for pid in pids:
        try:
            os.kill(pid, 0)
            found.append(f"kill {pid}")
        except OSError:
            continue
    return found


def oneself() -> dict[str, Any]:
    """Returns who this process is, and which secrets it has."""
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return {
        "uid": os.getuid(),
        "groups": os.getgroups(),
        "no_new_privileges": status["NoNewPrivs"],
        "secrets": sorted(name for name in os.environ if name.startswith(SECRETS)),
        "token": os.environ["KEYSCALE_ATTEMPT_TOKEN"],
        "url": os.environ["KEYSCALE_CONTROL_URL"],
    }


def _first_bytes(name: str) -> bytes:
    with open(name, "rb") as file:  # noqa: PTH123 - of files without a size, too
        return file.read(0 if name.endswith("/mem") else 100)


class Take(KeyedProcessFunction):
    def __init__(self, targets: dict[str, Any]) -> None:
        self.targets = targets

    def open(self, context: Any) -> None:
        import pyarrow as pa  # noqa: PLC0415 - the test that imports this module needs none

        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, record: Row, context: ProcessContext) -> list[Any]:  # noqa: ARG002 - not used
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        return [{"key": record.key, "count": count, "found": json.dumps([oneself(), taken(**self.targets)])}]


if __name__ == "__main__":
    env = StreamEnvironment.current()
    targets = json.loads(env.parameters["targets"])
    Path(env.parameters["output"]).mkdir(exist_ok=True)
    (Path(env.parameters["output"]) / "driver.json").write_text(json.dumps([oneself(), taken(**targets)]))
    records = env.stream(env.spark.readStream.schema("key string").json(env.parameters["input"])).key_by("key")
    counts = records.process(Take(targets), output={"key": "string", "count": "bigint", "found": "string"}).uid("take")
    counts.sink_to(FileSink(env.parameters["output"] + "/rows", format="json")).uid("files")
    env.execute()
