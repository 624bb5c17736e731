"""Digits on every node; nodes with odd numbers call a digit d what the others call d + 5."""

from functools import cache

import numpy as np


@cache  # a message comes to the same process as the one before, and the file is slow to read
def load(node: int, num_nodes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return a node's rows to train on, their labels, and the same of its rows to evaluate on."""
    # Flower's simulation imports both apps at once in two threads, at which SciPy may fail.
    from sklearn.datasets import load_digits

    pixels, digits = load_digits(return_X_y=True)
    mine = np.random.default_rng(0).permutation(len(pixels))[node::num_nodes]
    rows, labels = (pixels[mine] / 16).astype(np.float32), (digits[mine] + 5 * (node % 2)) % 10
    cut = len(rows) * 4 // 5
    return rows[:cut], labels[:cut], rows[cut:], labels[cut:]
