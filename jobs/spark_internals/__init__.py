"""Code that relies on private or undocumented parts of Spark.

Each part has a module, listed in docs/spark-internals.md.
"""
