"""Compose, plan and run a federation; its result; the command line."""
