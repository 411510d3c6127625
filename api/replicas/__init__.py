"""Replicas of the control plane, their health and their proofs."""
