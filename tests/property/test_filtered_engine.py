"""Random histories of a store with key filters, compared with a plain dict."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from keyscale.state.engine.engine import Mutation, SortedRun
from keyscale.state.engine.filtered import FilteredEngine
from keyscale.state.engine.rocksdb import RocksDbEngine
from tests.property.histories import EXAMPLES, SCRATCH
from tests.support.state.eager_filters import eager_filters

FAMILY = "family"
KEYS = st.lists(st.integers(0, 400).map(lambda number: b"%d" % number), min_size=1, max_size=80, unique=True)
VALUES = st.sampled_from([b"x", b"y", None])


class FilteredMachine(RuleBasedStateMachine):
    """Lookups, all kinds of writes, files ingested later or from other stores, deletions, restarts."""

    @initialize()
    def start(self):
        self.eager = eager_filters(judged_lookups=500)
        self.eager.__enter__()
        self.directory = Path(tempfile.mkdtemp(dir=SCRATCH))
        self.engine = FilteredEngine(self.directory / "store")
        self.other = RocksDbEngine(self.directory / "other")
        self.model = {}
        self.waiting = []

    @rule(keys=KEYS)
    def look_up(self, keys):
        assert self.engine.get_many(FAMILY, keys) == [self.model.get(key) for key in keys]

    @rule(keys=KEYS, value=VALUES)
    def write(self, keys, value):
        self.engine.write([Mutation(FAMILY, key, value) for key in keys])
        self.model.update(dict.fromkeys(keys, value))

    @rule(keys=KEYS, value=VALUES)
    def write_run(self, keys, value):
        self.engine.write_runs([SortedRun(FAMILY, sorted(keys), [value] * len(keys))])
        self.model.update(dict.fromkeys(keys, value))

    @rule(keys=KEYS, value=VALUES, own=st.booleans())
    def write_file(self, keys, value, own):
        file = self.directory / f"{len(self.waiting)}-{len(list(self.directory.iterdir()))}.sst"
        run = SortedRun(FAMILY, sorted(keys), [value] * len(keys))
        (self.engine if own else self.other).write_sorted_file(run, file)
        self.waiting.append((file, dict.fromkeys(keys, value)))

    @rule()
    def ingest(self):
        if self.waiting:
            file, entries = self.waiting.pop(0)
            self.engine.ingest(FAMILY, [file])
            self.model.update(entries)

    @rule(bounds=st.tuples(st.integers(0, 400), st.integers(0, 400)))
    def delete_range(self, bounds):
        start, end = sorted(b"%d" % number for number in bounds)
        self.engine.delete_range(start, end, FAMILY)
        self.model = {key: value for key, value in self.model.items() if not start <= key < end}

    @rule(flushed=st.booleans())
    def open_again(self, flushed):
        if flushed or self.engine.families():
            self.engine.flush()
        self.engine.close()
        self.engine = FilteredEngine(self.directory / "store")

    @rule(keys=KEYS)
    def change_without_filters(self, keys):
        self.engine.flush()
        self.engine.close()
        plain = RocksDbEngine(self.directory / "store")
        plain.write([Mutation(FAMILY, key, b"z") for key in keys])
        plain.flush()
        plain.close()
        self.model.update(dict.fromkeys(keys, b"z"))
        self.engine = FilteredEngine(self.directory / "store")

    @rule()
    def compact(self):
        self.engine.compact()

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.close()
            self.other.close()
            shutil.rmtree(self.directory)
            self.eager.__exit__(None, None, None)


FilteredMachine.TestCase.settings = settings(
    deadline=None, max_examples=EXAMPLES, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestFilteredMachine = FilteredMachine.TestCase
