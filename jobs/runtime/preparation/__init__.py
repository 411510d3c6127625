"""Preparation of a driver before its first batch.

It fetches the job's artifact, warms up Spark and builds the archive of classes.
"""
