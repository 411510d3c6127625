"""The part of the runtime in the Python workers of Spark's executors, beside the subtasks' state."""
