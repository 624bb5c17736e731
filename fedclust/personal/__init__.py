"""How a client adapts its cluster's model to itself."""
