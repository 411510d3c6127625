"""Names the fates of state under another program.

Clients of the control plane read plans, and import neither numpy nor Arrow.
"""

from __future__ import annotations

from ..keyed.fate import Fate

__all__ = ["Fate"]
