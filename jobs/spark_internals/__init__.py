"""Code that rests on private or undocumented parts of Spark: one module per part, listed in docs/spark-internals.md."""
