"""The pages: HTML frames, filled from the public API.

Small ES modules fill them.
"""
