"""The demo: runs the main job on real input, kills it, rescales it, and checks the result by a plain computation."""
