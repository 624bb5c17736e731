"""Grids: track which node hosts which client, and carry messages to clients and back."""
