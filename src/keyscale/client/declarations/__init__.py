"""Declares jobs in files."""
