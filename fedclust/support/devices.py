"""The device and the threads that PyTorch computes on in this process."""

import contextlib
import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import nn


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
        Number of PyTorch's threads in each of them and, while the pool exists, in the calling thread, >= 1.
    """
    with (
        torch_threads(inside),
        ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(inside,)) as pool,
    ):
        yield pool


@cache
def keep_freed_memory() -> None:
    """Let this process keep the memory of freed tensors up to 64 MiB, 1 GiB in all, with glibc.

    glibc hands large blocks back at once, and an operation on new ones waits until the system has cleared
    their pages: a tenth of the time of a convolutional network's step, in bfloat16 a quarter. Larger blocks,
    such as the stacked models of a cohort, it shall hand back: those that are kept are split for smaller
    ones, and a node's peak was three times ``training.chunk``'s 1 GiB in one of four runs.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library; Windows
        library = ctypes.CDLL(None)
        trim_threshold, mmap_threshold = -1, -3  # <malloc.h>
        library.mallopt(mmap_threshold, 2**26)
        library.mallopt(trim_threshold, 2**30)


def check_device(device: str | int) -> None:
    """Check that this machine has a device.

    Parameters
    ----------
    device
        ``"auto"``, a name that PyTorch knows, such as ``"cuda:1"``, or the number of an accelerator.

    Raises
    ------
    ValueError
        If PyTorch knows no such device, or cannot reach it.
    """
    try:
        torch.empty(0, device="cpu" if device == "auto" else device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        if reason.startswith("Expected one of"):  # some 20 names of devices
            reason = "those of PyTorch are cpu, cuda, cuda:1, mps, xpu and so on"
        raise ValueError(
            f"device must be auto or a device of this machine, got {device!r}: {reason}"
        ) from error


@contextlib.contextmanager
def exact_kernels(network: nn.Module | None = None) -> Iterator[None]:
    """Make GPUs compute like CPUs: products in float32, and gradients of recurrent layers in evaluation.

    By default PyTorch lets cuDNN round the factors of convolutions to TF32, that is to three decimal digits,
    so that embeddings and models' outputs, and possibly clusters, differ from those on the CPU. And cuDNN's
    recurrent layers have gradients only in training, and none inside ``torch.func.grad``.

    Parameters
    ----------
    network
        Network to differentiate, without cuDNN if it has recurrent layers. None if no gradient is needed.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled
    recurrent = network is not None and any(isinstance(each, nn.RNNBase) for each in network.modules())
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    cudnn.enabled = cudnn.enabled and not recurrent
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled = before
