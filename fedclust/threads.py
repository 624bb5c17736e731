"""PyTorch's threads inside operations beside Python's own."""

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["torch_threads"]


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let PyTorch use so many threads inside an operation, and set that back afterwards.

    Parameters
    ----------
    number
        Threads, >= 1. A thread that Python starts inside must be told by ``torch.set_num_threads`` too.
    """
    before = torch.get_num_threads()
    if number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
