"""Uploaded programs and libraries."""
