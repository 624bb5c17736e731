"""The networks that clients train, and the frozen encoders of FMCL.

Importing this package imports nothing large.
"""
