"""Libraries that jobs bring beside their programs.

This room inspects uploads, has the rules, and copies libraries to this host.
"""
