"""Tests of the pages, as a package: its browser and its control plane end with its last test."""
