"""Several threads may decode a document type for the first time at once; msgspec alone crashes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_RACE = """
import sys, threading, typing
import msgspec
from keyscale.state.decoding import json_decoder

def locked(of_type):
    return json_decoder(of_type).decode(DOCUMENT)

def unlocked(of_type):
    return msgspec.json.decode(DOCUMENT, type=of_type)

DOCUMENT = b'{"x": {"type": "t3", "a": 1, "b": null, "c": {}}}'
decode = {"locked": locked, "unlocked": unlocked}[sys.argv[1]]
sys.setswitchinterval(1e-6)
failures = []
for number in range(300):
    columns = [("a", int), ("b", typing.Optional[str]), ("c", dict[str, list[int]])]
    parts = [msgspec.defstruct(f"Part{number}_{at}", columns, tag=f"t{at}") for at in range(6)]
    document = msgspec.defstruct(f"Document{number}", [("x", typing.Union[tuple(parts)])])
    together = threading.Barrier(6)

    def read():
        together.wait()
        try:
            decode(document)
        except Exception as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
sys.exit(bool(failures))
"""


@pytest.mark.parametrize(("how", "ends"), [("locked", {0}), ("unlocked", {-signal.SIGSEGV, -signal.SIGABRT, 1})])
def test_threads_that_are_the_first_to_decode_a_type_do_not_crash_the_process(how: str, ends: set[int]) -> None:
    run = subprocess.run([sys.executable, "-c", _RACE, how], capture_output=True, check=False)
    assert run.returncode in ends, run.stderr.decode()
