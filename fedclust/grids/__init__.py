"""Grids: who hosts which client, and how messages reach it and come back."""
