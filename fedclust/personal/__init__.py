"""What a client makes of its cluster's model for itself."""
