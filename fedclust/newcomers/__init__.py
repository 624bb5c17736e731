"""Placement of clients that join after the clusters were formed."""
