"""Settings of a run: compose them with Hydra, check them, and pass them to servers and nodes."""
