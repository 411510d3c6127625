"""A driver's communication with the control plane.

The driver sends its status and reports; the control plane sends commands.
"""
