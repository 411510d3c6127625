"""Property tests of jobs: no deadline an example, as the first one pays for imports and a busy machine is slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("keyscale", deadline=None, print_blob=True)
settings.load_profile("keyscale")
