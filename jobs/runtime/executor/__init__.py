"""The part of the runtime in the Python workers of executors."""
