"""What server and clients say to each other, and what is remembered between rounds, as plain values."""
