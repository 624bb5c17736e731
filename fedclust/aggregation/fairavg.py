"""FairAvg: the mean of the cohort's models in which every client counts the same."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedclust.messages.training import instruct


class FairAvg(FedAvg):
    """FedAvg whose clients all have the same weight, however many samples they have.

    Source: Michieli and Ozay, "Are All Users Treated Fairly in Federated Learning Systems?", CVPR Workshops
    2021. Nodes that answer with one mean for several clients are told to weight these equally; on the server,
    :func:`fedclust.aggregation.flower.aggregate` gives every client's reply the weight of one sample.
    """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Tell nodes to weight their clients equally where they answer with a mean."""
        instruction = ConfigRecord({**config, **instruct(equal_weights=True)})
        return super().configure_train(server_round, arrays, instruction, grid)
