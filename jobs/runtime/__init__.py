"""Runs jobs on Spark.

A driver plans and commits batches; their tasks run in executors.
"""
