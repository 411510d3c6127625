"""The process that reads state for the control plane: `python -m keyscale.state_io.reading_process`.

It reads a request as JSON from standard input, and writes the answer, or the error, as JSON. `read` in the request says
what is read: `key`, `history` or `sql`; `change` writes a savepoint, and
`repeated-change` finds the answer of an earlier one.

With `--latest-keys` it reads keys of one job after its latest batch, a request and an answer a line, and keeps what it
has fetched. It ends with its input, or after five minutes without a request.
"""

from __future__ import annotations

import json
import logging
import resource
import select
import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from keyscale.errors import KeyscaleError

from .answer_limit import StateAnswerTooLargeError, check_answer
from .key_change import change_of_job, first_answer
from .key_state import KeyRequest, LatestKeys, read_history, read_key

if TYPE_CHECKING:
    from collections.abc import Callable

_MEMORY_BYTES_MAX = 3 << 30
_PROCESSOR_S_MAX = 120
_IDLE_MS_MAX = 300_000


def main() -> int:
    """Carries out the request on standard input; returns the exit code."""
    logging.disable()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    if sys.argv[1:] == ["--latest-keys"]:
        _answer_lines()  # the control plane limits the time of each
        return 0
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_S_MAX, _PROCESSOR_S_MAX))
    sys.stdout.write(answer_text(json.load(sys.stdin)))
    return 0


def _answer_lines() -> None:
    keys = LatestKeys()
    input_ = select.poll()
    input_.register(sys.stdin, select.POLLIN)
    try:
        while input_.poll(_IDLE_MS_MAX) and (line := sys.stdin.readline()):
            request = KeyRequest(**json.loads(line))
            sys.stdout.write(f"{_text(partial(keys.read, request))}\n")
            sys.stdout.flush()
    finally:
        keys.close()


def answer_text(request: dict[str, Any]) -> str:
    """Returns the answer to a request, or the error, as JSON."""
    return _text(lambda: _answer(request.pop("read"), request))


def _text(answer: Callable[[], dict[str, Any]]) -> str:
    try:
        text = json.dumps({"answer": answer()})
        check_answer(text)
    except MemoryError:
        error: KeyscaleError = StateAnswerTooLargeError(
            f"the read takes more than {_MEMORY_BYTES_MAX:,} bytes of memory"
        )
    except KeyscaleError as caught:
        error = caught
    else:
        return text
    return json.dumps({"problem": {"code": error.code, "domain": error.domain, "message": str(error)}})


def _answer(read: str, request: dict[str, Any]) -> dict[str, Any]:
    if read == "sql":
        from .snapshot_sql import SqlRequest, run_statement  # noqa: PLC0415 - DuckDB takes a while to import

        return run_statement(SqlRequest(**request))
    if read == "change":
        return change_of_job(**request)
    if read == "repeated-change":
        return {"answer": first_answer(**request)}
    return (read_history if read == "history" else read_key)(KeyRequest(**request))


if __name__ == "__main__":
    sys.exit(main())
