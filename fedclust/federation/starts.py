"""Several models to start from, for methods that train more than one from the first round on."""

from flwr.app import ArrayRecord
from torch import nn

from fedclust.messages.models import from_state, like
from fedclust.models import construction
from fedclust.support.rng import torch_seed


def starting_models(
    network: nn.Module, model: ArrayRecord, number: int, seed: int
) -> tuple[ArrayRecord, ...]:
    """Draw models; the first is the one that other strategies start from.

    Every strategy draws the same ones for the same seed, so that methods are compared from the same starts.

    Parameters
    ----------
    network
        The architecture; each layer draws its weights with its own ``reset_parameters``.
    model
        The model that everyone starts from where there is one for all.
    number
        Number of models, >= 1.
    seed
        The run's seed.

    Raises
    ------
    ValueError
        If a layer with parameters has no ``reset_parameters``; the message names it. Or if the network is not
        the one that clients train.
    """
    try:
        like(from_state(network.state_dict()), model)
    except ValueError as error:
        raise ValueError(f"network must be the one that clients train: {error}") from error
    seeds = (torch_seed(seed, "starting models", index) for index in range(1, number))
    drawn = (construction.reinitialised(network, each) for each in seeds)
    return (model, *(from_state(each.state_dict()) for each in drawn))
