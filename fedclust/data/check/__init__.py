"""The data doctor: check a table before anything learns from it, or leaves its site."""
