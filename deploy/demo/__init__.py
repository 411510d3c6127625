"""The demo: disturbs the main job, and checks its result.

It kills and rescales the job on real input, and compares the result with a plain computation.
"""
