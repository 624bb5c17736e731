"""Settings of a run: composed by Hydra, checked, and passed on to servers and nodes."""
