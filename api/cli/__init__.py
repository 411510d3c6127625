"""The command line.

All its commands except `up` and `where` call a control plane over HTTP.
"""
