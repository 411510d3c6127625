"""Threads beside the reconciler.

They announce this control plane, and remove unneeded objects, files and rows.
"""
