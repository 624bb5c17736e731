"""Layers that stay at home: a client keeps part of its model, or a model of its own, and sends the rest.

``personal=`` chooses one for any strategy. A part stays (:class:`FedPer`, :class:`FedRep`, :class:`FedBN`):
the server's models lack it, so no message holds it, and whatever a client is sent is completed by its own. Or
the server's model is whole, and each client trains a second model beside it (:class:`Ditto`, :class:`APFL`)
that serves it.

Sources: Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization Layers",
arXiv:1912.00818, 2019 (FedPer). Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared
Representations for Personalized Federated Learning", ICML 2021 (FedRep). Li, Jiang, Zhang, Kamp and Dou,
"FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021. Li, Hu, Beirami and
Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021. Deng, Kamani and
Mahdavi, "Adaptive Personalized Federated Learning", arXiv:2003.13461, 2020 (APFL).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, ClassVar

from fedclust.personal.layers import Auto, Finetune, NoLayer, Personal, Prior
from fedclust.support.checks import Checked, few

if TYPE_CHECKING:
    from torch import nn

    from fedclust.typing import State


@dataclass(frozen=True)
class Staying(Personal, Checked):
    """What of a model stays with each client, and how it is trained there."""

    @property
    def overrides(self) -> str:
        """The choice and its settings, as on the command line."""
        given = ((each.name, getattr(self, each.name)) for each in fields(self))
        listed = (f"personal.{n}={[*v] if isinstance(v, list | tuple) else v}" for n, v in given)
        return " ".join((f"personal={self.choice}", *listed))

    @property
    def rate(self) -> float:
        """The number that its rule needs; 0 if it needs none."""
        return 0.0

    @property
    def adapts(self) -> bool:
        """Whether clients adapt that number."""
        return False

    @property
    def twin(self) -> bool:
        """Whether each client trains a second, whole model beside the shared one."""
        return False

    def staying(self, model: "nn.Module") -> list[str]:  # noqa: ARG002
        """List the entries of a network's ``state_dict`` that stay; none where a second model does.

        Raises
        ------
        ValueError
            If the network has no such layer, or no other.
        """
        return []


@dataclass(frozen=True)
class _Head(Staying):
    """The head stays, and the body is shared.

    Attributes
    ----------
    layers
        Names of the layers that stay, as in the network; the last linear layer if none is named.
    """

    layers: Sequence[str] = ()

    def staying(self, model: "nn.Module") -> list[str]:
        """List the entries of the head's layers."""
        from torch import nn

        modules = [(name, each) for name, each in model.named_modules(remove_duplicate=False) if name]
        holding = [name for name, each in modules if next(each.parameters(), None) is not None]
        chosen = list(self.layers)
        if unknown := [name for name in chosen if name not in holding]:
            raise ValueError(f"personal.layers must be among {few(holding, 20)}, got {', '.join(unknown)}")
        if not chosen:
            linear = [name for name, each in modules if isinstance(each, nn.Linear)]
            if not linear:
                rule = "personal.layers must name the layers that stay of a network without linear ones"
                raise ValueError(f"{rule}, it has {few(holding, 20)}")
            chosen = linear[-1:]
        setting = f"personal.layers={','.join(chosen)}"
        if not any(
            each.requires_grad for name, layer in modules if name in chosen for each in layer.parameters()
        ):
            raise ValueError(f"{setting} must have a parameter that trains, all are frozen")
        return _of_layers(model, chosen, setting)


@dataclass(frozen=True)
class FedPer(_Head):
    """The head stays; head and body are trained together.

    Source: FedPer, Algorithms 1 and 2.

    Attributes
    ----------
    layers
        Names of the layers that stay, as in the network; the last linear layer if none is named.

    Examples
    --------
    >>> from torch import nn
    >>> FedPer().staying(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    ['2.weight', '2.bias']
    """

    choice: ClassVar[str] = "fedper"


@dataclass(frozen=True)
class FedRep(_Head):
    """The head stays; in a round it is trained first, then the body, each while the other does not change.

    Source: FedRep, Algorithm 1. The paper counts the steps of the two apart. Here they share the round's
    steps, so that a round costs what one of FedAvg does: ten epochs for the head and one for the body are
    ``training.epochs=11 personal.head_share=0.91``. Each has one step at least, and an optimiser of its own.

    Attributes
    ----------
    layers
        Names of the layers that stay, as in the network; the last linear layer if none is named.
    head_share
        Share of a round's steps that train the head, in (0, 1).

    Examples
    --------
    >>> FedRep(head_share=1.0)
    Traceback (most recent call last):
        ...
    ValueError: head_share must be in (0, 1), got 1.0
    """

    choice: ClassVar[str] = "fedrep"

    head_share: Annotated[float, "in (0, 1)"] = 0.5

    @property
    def rate(self) -> float:
        """The head's share of steps."""
        return self.head_share


@dataclass(frozen=True)
class FedBN(Staying):
    """Normalisation layers stay, with their statistics; all layers are trained together.

    Source: FedBN, Algorithm 1.

    Examples
    --------
    >>> from torch import nn
    >>> FedBN().staying(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2)))
    ['1.weight', '1.bias']
    """

    choice: ClassVar[str] = "fedbn"

    def staying(self, model: "nn.Module") -> list[str]:
        """List the entries of batch, instance, group, layer and RMS normalisation."""
        from torch import nn
        from torch.nn.modules.batchnorm import _NormBase

        kinds = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
        modules = model.named_modules(remove_duplicate=False)
        norms = [name for name, each in modules if isinstance(each, kinds)]
        names = _of_layers(model, norms, "personal=fedbn") if norms else []
        if not names:
            raise ValueError("personal=fedbn must have a network with normalisation layers, this has none")
        return names


@dataclass(frozen=True)
class Ditto(Staying):
    """Each client trains a model of its own beside the shared one, and is pulled towards that.

    A round trains both on the same batches: the shared model as in FedAvg, and the client's own by steps on
    its loss plus λ/2 times the squared distance from the shared model that it was sent.

    Source: Ditto, Algorithm 1.

    Attributes
    ----------
    weight
        The paper's λ; 0 for a model trained alone.
    """

    choice: ClassVar[str] = "ditto"

    weight: Annotated[float, ">= 0 and finite"] = 1.0

    @property
    def rate(self) -> float:
        """The weight λ."""
        return self.weight

    @property
    def twin(self) -> bool:
        """It trains a second model."""
        return True


@dataclass(frozen=True)
class APFL(Staying):
    """Each client is served a mixture of a model of its own, with share α, and the shared one.

    In every step the shared model follows the gradient of its own loss, and the client's own that of the
    mixture's loss. In the first step of each round, α follows its gradient, too.

    Source: APFL, Algorithm 1 and Eq. 10, which does not bound α; here it stays in [0, 1].

    Attributes
    ----------
    share
        Share α of the client's own model at the start.
    adaptive
        Whether clients adapt it.
    """

    choice: ClassVar[str] = "apfl"

    share: Annotated[float, "in [0, 1]"] = 0.5
    adaptive: bool = True

    @property
    def rate(self) -> float:
        """The share α at the start."""
        return self.share

    @property
    def adapts(self) -> bool:
        """Whether α changes."""
        return self.adaptive

    @property
    def twin(self) -> bool:
        """It trains a second model."""
        return True


CHOICES: Mapping[str, type[Staying]] = {each.choice: each for each in (FedPer, FedRep, FedBN, Ditto, APFL)}


def named(personal: Personal | str) -> Personal:
    """Create a choice of personal layers by name, with its defaults; return an object unchanged.

    Raises
    ------
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> named("finetune")
    Finetune(epochs=5, layers='all', learning_rate=None)
    """
    if isinstance(personal, Personal):
        return personal
    choices = {each.choice: each for each in (NoLayer, Prior, Finetune, Auto)} | dict(CHOICES)
    if personal not in choices:
        raise ValueError(
            f"personal must be one of {', '.join(choices)}, or a Personal object, got {personal!r}"
        )
    return choices[personal]()


def _of_layers(model: "nn.Module", layers: Collection[str], setting: str) -> list[str]:
    """List the entries of layers; check that others are left, and share no parameters with them."""
    state, modules = model.state_dict(keep_vars=True), dict(model.named_modules(remove_duplicate=False))
    staying = {id(modules[layer]) for layer in layers}  # a layer may have several names
    every = [name for name, each in modules.items() if id(each) in staying]
    names = [name for name in state if any(name.startswith(f"{layer}.") for layer in every)]
    kept = {id(state[name]) for name in names}
    shared = [name for name in state if name not in names]
    if both := [name for name in shared if id(state[name]) in kept]:
        raise ValueError(f"{setting} must share no parameters with layers that do not stay, got {both[0]}")
    if not any(id(parameter) not in kept for parameter in model.parameters() if parameter.requires_grad):
        raise ValueError(f"{setting} must leave a layer to train together, it leaves none")
    return names


# -- What is kept -------------------------------------------------------------------------------------------

_SHARE, _ROUND = "/share", "/round"  # no name of a tensor begins with a slash
KEPT = "kept"
"""Key of what a node's file says of itself: the client and the run, such as ``client-7/fedavg``."""


@dataclass(frozen=True, eq=False)
class Own:
    """What a client keeps.

    Attributes
    ----------
    tensors
        The part of the model that stays, or a whole model of its own, by name.
    share
        Share of these tensors in what serves the client where it is sent such tensors, too.
    round
        The round after which the client keeps this; 0 if it is not known.
    """

    tensors: "State"
    share: float = 1.0
    round: int = 0

    @classmethod
    def of_file(cls, tensors: "State") -> "Own":
        """Read what a file has: the tensors, and share and round by names that no tensor has.

        Raises
        ------
        ValueError
            If the share is not a number in [0, 1].
        """
        own = dict(tensors)
        share, last = own.pop(_SHARE, None), own.pop(_ROUND, None)
        if share is not None and not (share.numel() == 1 and 0 <= float(share) <= 1):
            raise ValueError(f"{_SHARE} must be a number in [0, 1], got {share.tolist()!r:.80}")
        return cls(own, 1.0 if share is None else float(share), int(last) if last is not None else 0)

    def for_file(self) -> "State":
        """Return what a file gets, see :meth:`of_file`."""
        import torch

        own = {name: each.cpu().contiguous() for name, each in self.tensors.items()}
        return {
            **own,
            _SHARE: torch.tensor(self.share, dtype=torch.float64),
            _ROUND: torch.tensor(self.round),
        }

    def serving(self, sent: "State") -> "State":
        """Return the tensors that serve the client in place of those of a model that it was sent."""
        return {
            name: sent[name].to(mine).lerp(mine, self.share)
            if name in sent and self.share < 1 and mine.is_floating_point()
            else mine
            for name, mine in self.tensors.items()
        }


class Kept:
    """What the clients of a node keep, by run: compared strategies train on the same clients."""

    def __init__(self) -> None:
        self._own: dict[str, dict[int, Own]] = {}

    def of(self, run: str) -> dict[int, Own]:
        """Return what each client keeps of a run, by client id, to read and to change."""
        return self._own.setdefault(run, {})

    def before(self, run: str, server_round: int, clients: Iterable[int]) -> None:
        """Go back, with clients that have trained in this round, to what they kept before it.

        Whoever is asked again, because its reply was lost, trains as it did. In one process no reply is lost.
        """
