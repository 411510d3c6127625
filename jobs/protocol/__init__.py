"""Shared by drivers and the control plane: messages, restart decisions, Spark settings, the masking of secrets."""
