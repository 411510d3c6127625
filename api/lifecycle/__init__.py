"""The lifecycle of jobs: where a job is, what its user wants, and the next step. Only this room writes a job's status.

`intents` stores what users want, `fact_reader` reads the facts, `decision` (pure) decides the one next step, `steps`
defines the steps, `apply` applies them, and `reconciler` is the loop around all of it.
"""
