"""Threads beside the reconciler: they announce this control plane, and remove what nobody needs any more."""
