"""The answers with metrics."""
