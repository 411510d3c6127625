"""The test harness for users' functions, without Spark or a store.

Users import `keyscale.testing`.
"""
