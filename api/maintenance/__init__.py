"""Threads beside the reconciler.

They announce this control plane, verify snapshots, and remove unneeded objects, files and rows.
"""
