"""The SDK for jobs, and the runtime that executes them on Spark.

Users import from `keyscale`.
"""
