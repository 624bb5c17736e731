"""PyTorch's threads inside operations beside Python's own."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["thread_pool", "torch_threads"]


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let PyTorch use so many threads inside an operation, and set that back afterwards.

    Parameters
    ----------
    number
        Threads, >= 1. A thread that Python starts must be told too; :func:`thread_pool` does it.
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
    """Start threads that compute with PyTorch, each with so many of PyTorch's own inside an operation.

    Parameters
    ----------
    threads
        Python's threads, >= 1.
    inside
        PyTorch's threads in each of them, and in the calling thread meanwhile, >= 1.
    """
    with (
        torch_threads(inside),
        ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(inside,)) as pool,
    ):
        yield pool
