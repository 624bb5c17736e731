"""What may happen in a round beside the method."""
