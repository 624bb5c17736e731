"""Combine the clients' models of a cluster: Flower's strategies, robust rules, optimiser state."""
