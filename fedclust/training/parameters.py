"""Hyperparameters of local training: the ``training:`` node of the configuration."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedclust.support.checks import check
from fedclust.training.losses import Loss, cross_entropy

Optimizer = Literal["sgd", "adam"]
Schedule = Literal["constant", "cosine", "exponential"]
Augmentation = Literal["none", "crop_flip"]
Mode = Literal["auto", "vectorised", "sequential"]
Precision = Literal["float32", "tf32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Hyperparameters of local training.

    Optimisers start afresh on every client in every round; their updates equal those of ``torch.optim``.

    Attributes
    ----------
    optimizer
        ``"sgd"`` (``torch.optim.SGD``, no dampening, no Nesterov) or ``"adam"`` (``torch.optim.Adam``).
    learning_rate
        Learning rate in round 1; `schedule` sets it in later rounds.
    momentum
        Momentum of SGD, in [0, 1).
    weight_decay
        L2 penalty added to the gradient, in SGD and Adam alike.
    betas
        Adam's two decay rates, each in [0, 1).
    adam_epsilon
        Added to the denominator of Adam's update.
    batch_size
        Examples per step; the last batch of an epoch may be smaller.
    epochs, steps
        Length of a client's training in a round: passes over its data, or mini-batch steps. Exactly one is
        given.
    schedule
        Learning rate over rounds: ``"constant"``; ``"cosine"``, from `learning_rate` in round 1 towards 0
        after `schedule_rounds` rounds; ``"exponential"``, times `decay` each round.
    schedule_rounds
        Length of the cosine in rounds; None for the other schedules.
    decay
        Factor per round of the exponential schedule, in (0, 1].
    clip_norm
        Largest norm of a step's gradient, as in ``torch.nn.utils.clip_grad_norm_``; None for no clipping.
    augmentation
        ``"none"``; ``"crop_flip"``: at every step each image is padded by 4 black pixels, cropped at random
        to its size, and mirrored with probability ½, before it is normalised. For images only.
    loss
        The loss that training minimises and evaluation reports: a function from outputs, shape (B, C), and
        labels, shape (B,), to losses, shape (B,). Cross-entropy is faster than others, which are left to
        PyTorch to differentiate.
    proximal_mu
        FedProx's weight of ``mu / 2 * ||w - w_start||**2`` (Li et al., 2020, Eq. 2); 0 for none.
    mode
        Train a cohort's clients in one pass (``"vectorised"``), one after another (``"sequential"``), or as
        is faster for the model (``"auto"``): with recurrent or attention layers one after another; with
        convolutions in one pass on a GPU and one after another on a CPU; all others in one pass. The two ways
        agree to float tolerance.
    chunk
        Largest number of clients in one pass; ``"auto"`` for as many as fit into a fixed amount of memory.
    compile
        Whether to pass the vectorised step through ``torch.compile``: faster, after 20 s to minutes of
        compiling. MLPs have their own kernel and do not need it.
    precision
        ``"float32"``; ``"tf32"``, faster matrix products on GPUs; ``"bf16"``, bfloat16 autocast.
    evaluation_batch_size
        Examples per forward pass in evaluation; ``"auto"`` for 1,024, or 128 of a network with convolutions
        on a CPU, where larger outputs leave its caches.

    Raises
    ------
    ValueError
        If a value is out of range, both or none of `epochs` and `steps` are given, or a choice is unknown.

    Examples
    --------
    >>> rule = {"schedule": "exponential", "decay": 0.5}
    >>> training = LocalTraining(learning_rate=0.5, batch_size=32, epochs=1, **rule)
    >>> [training.learning_rate_at(server_round) for server_round in (1, 2, 3)]
    [0.5, 0.25, 0.125]
    """

    learning_rate: float
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    optimizer: Optimizer = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: Sequence[float] = (0.9, 0.999)
    adam_epsilon: float = 1e-8
    schedule: Schedule = "constant"
    schedule_rounds: int | None = None
    decay: float = 1.0
    clip_norm: float | None = None
    augmentation: Augmentation = "none"
    loss: Loss = cross_entropy
    proximal_mu: float = 0.0
    mode: Mode = "auto"
    chunk: int | Literal["auto"] = "auto"
    compile: bool = False
    precision: Precision = "float32"
    evaluation_batch_size: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        number = "a whole number >= 1"
        check(
            self,
            optimizer=Optimizer,
            schedule=Schedule,
            augmentation=Augmentation,
            mode=Mode,
            precision=Precision,
            learning_rate="> 0 and finite",
            momentum="in [0, 1)",
            weight_decay=">= 0 and finite",
            adam_epsilon="> 0 and finite",
            decay="in (0, 1]",
            proximal_mu=">= 0 and finite",
            clip_norm="> 0 and finite or None",
            batch_size=number,
            **dict.fromkeys(("chunk", "evaluation_batch_size"), f"{number} or auto"),
            **dict.fromkeys(("epochs", "steps", "schedule_rounds"), f"{number} or None"),
        )
        if not callable(self.loss):
            raise ValueError(f"loss must be a function of outputs and labels, got {self.loss!r}")
        if isinstance(self.loss, functools.partial) and not (self.loss.args or self.loss.keywords):
            object.__setattr__(self, "loss", self.loss.func)  # a configuration specifies a function like this
        if (self.epochs is None) == (self.steps is None):
            got = f"got epochs {self.epochs} and steps {self.steps}"
            raise ValueError(f"exactly one of epochs and steps must be given, {got}; set the other to null")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {self.betas}")
        if self.momentum and self.optimizer == "adam":
            raise ValueError(f"momentum must be 0 with adam, which has betas, got {self.momentum}")
        if self.schedule == "cosine" and self.schedule_rounds is None:
            raise ValueError("schedule_rounds must be given with the cosine schedule, got None")

    def learning_rate_at(self, server_round: int) -> float:
        """Compute the learning rate of a round.

        Parameters
        ----------
        server_round
            The round, from 1.

        Returns
        -------
        Learning rate, > 0 except after the end of a cosine, where it is 0.

        Raises
        ------
        ValueError
            If the round is below 1.
        """
        if server_round < 1:
            raise ValueError(f"server_round must be >= 1, got {server_round}")
        if self.schedule == "exponential":
            return self.learning_rate * self.decay ** (server_round - 1)
        if self.schedule == "cosine" and self.schedule_rounds is not None:
            progress = min((server_round - 1) / self.schedule_rounds, 1.0)
            return self.learning_rate * (1.0 + math.cos(math.pi * progress)) / 2.0
        return self.learning_rate
