"""Runs Keyscale: images, the local stack, and the demo."""
