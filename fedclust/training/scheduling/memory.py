"""How many clients fit into one pass."""

import torch

from fedclust.training.device_data import DeviceData
from fedclust.training.kernels.working_model import WorkingModel
from fedclust.training.losses import mean_loss
from fedclust.training.parameters import LocalTraining
from fedclust.training.scheduling.work import Work

__all__ = ["clients_per_pass"]

# Fixed amounts rather than what is free at the moment: the same run must be cut the same way every time.
_CPU_BYTES = 1 << 30
_GPU_SHARE = 0.4


def clients_per_pass(
    working: WorkingModel, data: DeviceData, training: LocalTraining, work: Work, *, together: bool
) -> int:
    """Estimate how many clients' training takes 1 GiB, or 40 % of the GPU's memory.

    Parameters
    ----------
    working
        The model.
    data
        The dataset.
    training
        Hyperparameters.
    work
        Clients like those to count; the first one is used.
    together
        Whether they train together. If not, only their results take memory.

    Returns
    -------
    Number of clients, at least 1.
    """
    if working.device.type == "cuda":
        ours = torch.cuda.get_per_process_memory_fraction(working.device)  # several nodes may share a GPU
        budget = _GPU_SHARE * ours * torch.cuda.get_device_properties(working.device).total_memory
    else:
        budget = float(_CPU_BYTES)
    if not together:
        return max(1, int(budget / max(1, working.nbytes)))
    # The model, its gradient, and one more for temporaries; the moments and Adam's denominator; FedProx's
    # start and difference.
    copies = 3 + bool(training.momentum) + 3 * (training.optimizer == "adam")
    copies += 2 * bool(training.proximal_mu)
    copies += training.mode == "vectorised_graphs"  # results leave the memory that stays
    # The backward pass holds about as much again.
    return max(
        1, int(budget / max(1, copies * working.nbytes + 2 * _saved_bytes(working, data, training, work)))
    )


def _saved_bytes(working: WorkingModel, data: DeviceData, training: LocalTraining, work: Work) -> int:
    """Compute the bytes that the forward pass of one client's first batch keeps for the backward pass."""
    own = {tensor.untyped_storage().data_ptr() for tensor in working.tensors.values()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    working.load(work.jobs[0].state)
    working.model.train()
    rows = torch.from_numpy(work.batches.rows[0, 0, : work.batches.sizes[0, 0]]).to(data.rows_device)
    inputs, labels = data.batch(rows)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        mean_loss(working.forward(inputs, work.keys[0, 0]), labels, training.loss)
    return sum(saved.values())
