"""Diagnostics: looks into running jobs."""
