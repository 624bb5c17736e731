"""Control the number of threads that PyTorch uses inside operations."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["thread_pool", "torch_threads"]


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of PyTorch's threads inside an operation; restore it afterwards.

    Parameters
    ----------
    number
        Number of threads, >= 1. It must also be set in each Python thread; :func:`thread_pool` does so.
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


@contextlib.contextmanager
def thread_pool(threads: int, inside: int) -> Iterator[ThreadPoolExecutor]:
    """Start a pool of Python threads, each with a given number of PyTorch's threads inside operations.

    Parameters
    ----------
    threads
        Number of Python threads, >= 1.
    inside
        Number of PyTorch's threads in each of them, and meanwhile in the calling thread, >= 1.
    """
    with (
        torch_threads(inside),
        ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(inside,)) as pool,
    ):
        yield pool
