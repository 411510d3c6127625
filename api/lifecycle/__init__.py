"""The lifecycle of jobs: their state, their goal and the next step.

Only this room writes a job's status.

`requests` stores users' requests, `fact_reader` reads the facts, `decision` (pure) decides the one next step, `steps`
defines the steps, `apply` applies them, and `reconciler` is the loop around them.
"""
