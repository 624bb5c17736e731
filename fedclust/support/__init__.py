"""Small helpers that every other part may use: seeds, draws, threads, strict JSON."""
