"""The process that reads a key's state for others: `python -m keyscale.state_io.key_state_process`.

It reads a request as JSON from standard input, and writes the answer, or the error, as JSON.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
import warnings
from typing import Any

from keyscale.errors import KeyscaleError

from .key_state import KeyRequest, read_history, read_key

_MEMORY_BYTES_MAX = 3 << 30
_PROCESSOR_S_MAX = 120


def main() -> int:
    """Carries out the request on standard input; returns the exit code."""
    logging.disable()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_S_MAX, _PROCESSOR_S_MAX))
    json.dump(_answer(json.load(sys.stdin)), sys.stdout)
    return 0


def _answer(given: dict[str, Any]) -> dict[str, Any]:
    read = read_history if given.pop("history") else read_key
    try:
        return {"answer": read(KeyRequest(**given))}
    except KeyscaleError as error:
        problem = {"code": error.code, "domain": error.domain, "message": str(error), "advice": error.advice}
        return {"problem": problem}


if __name__ == "__main__":
    sys.exit(main())
