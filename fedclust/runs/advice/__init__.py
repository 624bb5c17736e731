"""What a federation looks like before anyone trains for hours, and what it would take: ``task=advise``."""
