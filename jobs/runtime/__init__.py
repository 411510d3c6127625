"""Runs jobs on Spark: a driver plans and commits micro-batches, whose tasks run in executors."""
