"""Doors: the names of state that other packages import.

A door is a module per purpose, and only lists names. The modules behind a door may change without a change of other
packages.
"""
