import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedclust.clustering.curve_fitting import Fitting, fit_pairs
from fedclust.clustering.fedgmcc import Parameters
from fedclust.models.class_prototypes import class_subspaces, prototypes
from fedclust.models.embeddings import Examples
from fedclust.models.encoders import PixelEncoder
from fedclust.support.devices import check_device, exact_kernels, thread_pool, torch_threads

EXACT = (False, False, True)  # TF32 in products, TF32 in cuDNN, cuDNN


def flags() -> tuple[bool, bool, bool]:
    cudnn = torch.backends.cudnn
    return torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled


class Watched(nn.Module):
    """A network that notes PyTorch's settings in each pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.seen: set[tuple[bool, bool, bool]] = set()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen.add(flags())
        outputs = self.layer(inputs)
        return outputs[0] if isinstance(outputs, tuple) else outputs

    def __deepcopy__(self, memo: object) -> "Watched":
        copied = Watched(self.layer)
        copied.seen = self.seen  # what a copy sees counts
        return copied


class WatchedEncoder(PixelEncoder):
    def __init__(self) -> None:
        super().__init__((1, 2, 2))
        self.seen: set[tuple[bool, bool, bool]] = set()

    def encode(self, *arguments: object) -> torch.Tensor:
        self.seen.add(flags())
        return super().encode(*arguments[:3])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("network", "inside"),
    [
        (None, EXACT),
        (nn.Sequential(nn.Conv2d(1, 1, 1)), EXACT),
        # cuDNN has no gradient of it in evaluation.
        (nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.GRU(1, 1))), (False, False, False)),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_settings_inside_and_after(network, inside, fails) -> None:
    before = flags()
    with pytest.raises(ZeroDivisionError) if fails else exact_kernels(), exact_kernels(network):
        assert flags() == inside
        assert not fails or 1 / 0
    assert flags() == before


@pytest.mark.parametrize(("recurrent", "inside"), [(False, EXACT), (True, (False, False, False))])
def test_curves_are_fitted_exactly(recurrent: bool, inside: tuple[bool, bool, bool]) -> None:
    network = Watched(nn.LSTM(2, 3, batch_first=True) if recurrent else nn.Linear(2, 3))
    models = {name: torch.stack([tensor, -tensor]) for name, tensor in network.state_dict().items()}
    parameters = Parameters(steps=1, num_points=5, batch_size=2)
    fitting = Fitting(network, torch.ones(4, 5, 2), parameters, torch.Generator())
    fit_pairs(fitting, models)
    assert network.seen == {inside}


def test_examples_are_encoded_exactly() -> None:
    encoder, rows = WatchedEncoder(), np.arange(3)
    images = Examples(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 1]), 2)
    prototypes(encoder, images, [rows], device="cuda")
    assert encoder.seen == {EXACT}
    encoder.seen.clear()
    class_subspaces(encoder, images, rows, 1, device="cuda")
    assert encoder.seen == {EXACT}


def test_a_device_of_this_machine() -> None:
    for device in ("auto", "cpu"):
        check_device(device)
    with pytest.raises(ValueError, match="^device must be auto or a device of this machine, got 'abacus': "):
        check_device("abacus")


def test_threads_are_those_inside_and_again_those_before() -> None:
    before = torch.get_num_threads()
    with thread_pool(2, before + 1) as pool:
        assert {pool.submit(torch.get_num_threads).result() for _ in range(4)} == {before + 1}
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(OSError), torch_threads(before + 2):
        raise OSError(torch.get_num_threads() - before)
    assert torch.get_num_threads() == before


FAULTS = """
import resource
from threading import Thread

import torch
from fedclust.support.devices import keep_freed_memory

keep_freed_memory()

def work():
    for turn in range(60):
        if turn == 50:  # blocks that small ones split are no longer taken from new pages
            print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        torch.empty(2_000_000).fill_(1.0)  # 8 MB, 1,953 pages of 4 kB

thread = Thread(target=work)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is kept where the C library is glibc")
def test_freed_memory_is_kept() -> None:
    # The last ten turns would bring in 10 * 1,953 = 19,530 pages if each started with new ones.
    ran = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    before, after = map(int, ran.stdout.split())
    assert after - before < 1953


LARGE = """
from pathlib import Path
import torch
from fedclust.support.devices import keep_freed_memory

keep_freed_memory()
pages = lambda: int(Path("/proc/self/statm").read_text().split()[1])
before = pages()
torch.empty(32_000_000).fill_(1.0)  # 128 MB, 31,250 pages of 4 kB
print(pages() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="memory is handed back as glibc does")
def test_a_large_block_is_handed_back() -> None:
    ran = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 3125
