"""The entry of a measured process: runs one function of a module.

It imports only the standard library, because peers run in separate environments.

    python -m bench.child MODULE RESULT_FILE CORES OPTIONS_AS_JSON

It pins itself and its children to CORES cores, calls `MODULE.run(**options)`, and writes the answer as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path


def main(argv: list[str]) -> None:
    """Runs `MODULE.run(**options)` and writes its answer to RESULT_FILE."""
    module, result_file, cores, options = argv
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(cores)])
    answer = importlib.import_module(module).run(**json.loads(options))
    Path(result_file).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
