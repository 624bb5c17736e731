"""The networks that clients train, and the frozen encoders of FMCL.

Importing this package imports nothing large. :mod:`~fedclust.models.options` has the rules of every network
and encoder.
"""
