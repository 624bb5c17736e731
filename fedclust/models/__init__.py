"""The networks that clients train, and the frozen encoders of FMCL.

Importing this package imports nothing large. Its `options` have the rules of every network and encoder.
"""
