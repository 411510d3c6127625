"""Diagnostics of a running job, taken beside its batches."""
