"""Preparation of a driver before its first batch: the job's artifact, a warm Spark, the archive of classes."""
