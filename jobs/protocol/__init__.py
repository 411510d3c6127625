"""The protocol of drivers and the control plane.

It holds messages, restart decisions, Spark settings and the masking of secrets.
"""
