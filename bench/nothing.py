"""A Spark application that does nothing.

Submitting it makes Spark download the packages of its command line.
"""
