"""Hypothesis here: no deadline, as the machine may be busy, and examples that a failure prints to be run again."""

from hypothesis import settings

settings.register_profile("keyscale", deadline=None, print_blob=True)
settings.load_profile("keyscale")
