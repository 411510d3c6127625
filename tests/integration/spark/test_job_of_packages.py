"""A job of several files may call its packages what it likes: Keyscale takes one name, `keyscale`."""

from __future__ import annotations

import hashlib
import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.support.drivers.assignments import assignment
from tests.support.drivers.driver_process import DriverProcess, sink_rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

FILES = {
    "main.py": """
import json
from pathlib import Path

from jobs.look import Look, others
from keyscale import FileSink, StreamEnvironment
from state.names import KEY

env = StreamEnvironment.current()
Path(env.parameters["seen"]).write_text(json.dumps(others()))
words = env.stream(env.spark.readStream.schema("word string").json(env.parameters["input"]))
seen = words.key_by(KEY).process(Look(), output={"word": "string", "count": "bigint", "others": "string"}).uid("look")
seen.sink_to(FileSink(env.parameters["output"], format="json")).uid("files")
env.execute()
""",
    "jobs/__init__.py": "",
    "jobs/look.py": """
import importlib.util

import pyarrow as pa
from keyscale import KeyedProcessFunction, ValueStateDescriptor

import state


def others():
    # By bare names: Keyscale's packages, modules that are beside the driver's program, and folders of the checkout.
    names = ("api", "db", "deploy", "src", "tests", "bench", "attempt", "control", "job_run", "python_daemon", "worker")
    assert ".zip/state" in state.__file__
    return [name for name in names if importlib.util.find_spec(name)]


class Look(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process_element(self, record, context):
        self.count.update((self.count.value() or 0) + 1)
        yield {"word": record.word, "count": self.count.value(), "others": ",".join(others())}
""",
    "state/__init__.py": "",
    "state/names.py": 'KEY = "word"\n',
}


def test_its_packages_may_be_called_jobs_and_state_and_no_other_name_is_taken(
    drivers: list[DriverProcess], tmp_path: Path
) -> None:
    archive = tmp_path / "job.zip"
    with zipfile.ZipFile(archive, "w") as writing:
        for name, text in FILES.items():
            writing.writestr(name, text)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"word": "a"}\n{"word": "b"}\n{"word": "a"}\n')
    driver = DriverProcess.start(tmp_path / "driver", artifact=archive)
    drivers.append(driver)
    parameters = {
        name: str(tmp_path / folder) for name, folder in {"input": "in", "output": "out", "seen": "seen"}.items()
    }
    driver.assign(
        assignment(
            job_id="packages",
            job_name="packages",
            attempt=1,
            parallelism=2,
            max_parallelism=16,
            artifact_filename="job.zip",
            artifact_sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
            parameters=parameters,
            store_url=(tmp_path / "store").as_uri(),
        )
    )
    driver.wait_for(lambda: len(sink_rows(tmp_path / "out")) == 3, "all output")
    rows = sink_rows(tmp_path / "out")
    assert sorted((row["word"], row["count"]) for row in rows) == [("a", 1), ("a", 2), ("b", 1)]
    assert {row["others"] for row in rows} == {""}, "in Spark's workers"
    assert json.loads((tmp_path / "seen").read_text()) == [], "in the driver"
