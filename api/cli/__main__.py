"""Runs the command line: `python -m keyscale.api.cli`."""

from __future__ import annotations

import sys

from .root import main

if __name__ == "__main__":
    sys.exit(main())
