"""Runs the control plane: `python -m keyscale.api.web`."""

from __future__ import annotations

import sys

from .serve import main

sys.exit(main())
