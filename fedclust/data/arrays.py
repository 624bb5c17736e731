"""Build a federation's data from a user's own arrays, one entry per client."""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from fedclust.data.dataset import FederatedData
from fedclust.data.partition import hold_out_client
from fedclust.data.targets import KINDS, Target
from fedclust.support.checks import check_choice, check_value
from fedclust.support.rng import generator
from fedclust.typing import IntArray

_TEST_SHARE = 0.2
_MOST_CLASSES = 1_000_000  # larger numbers are identifiers, and would fill the memory with names


def from_arrays(
    clients: Sequence[Any],
    *,
    num_classes: int | None = None,
    seed: int = 0,
    name: str = "arrays",
    validation_fraction: float = 0.0,
    target: Target | Literal["auto", "classes", "amounts", "times"] = "auto",
    groups: Sequence[str] | None = None,
) -> FederatedData:
    """Build the data of a federation from each client's arrays.

    Parameters
    ----------
    clients
        For each client either ``(inputs, targets)``, arrays or tensors, of which a random fifth of the rows
        becomes the test part; or ``(train, validation, test)``, each such a pair. Validation data is never
        trained on, and may be None or empty.

        Inputs are floats or booleans of any shape, (N, *shape); uint8 images, (N, channels, height, width),
        which are normalised by the mean and standard deviation of all training pixels per channel; or
        integers, which are taken as tokens. Targets are class indices, (N,), or (N, positions); or with
        another `target`, amounts, (N,), or times and events, (N, 2).
    num_classes
        Number of classes C; the largest target plus one unless given.
    seed
        Seed for drawing the test parts.
    name
        Name of the data.
    validation_fraction
        Share of training rows held out for the proof, in [0, 1), for clients given as ``(inputs, targets)``;
        see :mod:`fedclust.data.partition`. Parts given as a triple are kept as they are.
    target
        What is predicted: ``"classes"``, ``"amounts"`` or ``"times"``, whose range or intervals are made of
        all clients' training rows, or a :class:`~fedclust.data.targets.Target`. With ``"auto"``, whole
        numbers are classes, and floats are amounts, or times and events where a row has two.
    groups
        Name of the group that people put each client in, such as a vendor, shape (K,); ``auto`` tests whether
        training by it helps.

    Raises
    ------
    ValueError
        If `validation_fraction` is outside its range; `groups` are not one per client; there are no clients
        or fewer than two classes; or a client (named in the message) has inputs and targets of different
        lengths, inputs of another shape or type than the first client's, fewer than two rows, no training or
        test row, a target that is not a class, or inputs that are not finite numbers.
    """
    check_value("validation_fraction", validation_fraction, "in [0, 1)")
    check_value("num_classes", num_classes, ">= 2 or None")
    if isinstance(target, str):
        check_choice("target", target, ("auto", *KINDS))
    if not isinstance(clients, Sequence) or isinstance(clients, str) or not clients:
        raise ValueError(f"clients must be a list with a pair or a triple per client, got {_sort(clients)}")
    given_groups = () if groups is None else groups
    named = tuple(str(each) for each in given_groups if each is not None)
    if groups is not None and not len(named) == len(given_groups) == len(clients):
        raise ValueError(f"groups must be a name per client, for {len(clients)} of them, got {groups!r}")
    kind = target.kind if isinstance(target, Target) else target
    if kind == "auto":
        kind = _kind_of_target(clients[0])
    if num_classes is not None and KINDS[kind].numeric:
        raise ValueError(f"num_classes must be None for {kind}, got {num_classes}")
    pairs: list[Pair] = []
    parts: tuple[list[IntArray], ...] = ([], [], [])
    start, first, content, drawn = 0, "", hashlib.sha256(), False
    for client, given in enumerate(clients):
        read = _read(client, given, kind)
        drawn |= len(read) == 1
        content.update(repr([len(x) for x, _ in read]).encode())
        for tensor in (each for pair in read for each in pair):
            content.update(tensor.contiguous().numpy().data)
        for rows, (x, y) in zip(parts, _split(client, read, seed, validation_fraction), strict=True):
            pairs.append((x, y))
            here = f"{x.dtype} {tuple(x.shape[1:])} and {tuple(y.shape[1:])}"
            if here != (first := first or here):
                raise ValueError(f"client {client} must have rows like client 0's, {first}, got {here}")
            if num_classes is not None and len(y) and (most := int(y.max())) >= num_classes:
                raise ValueError(
                    f"client {client} must have targets below num_classes, {num_classes}, got {most}"
                )
            rows.append(np.arange(start, start + len(x)))
            start += len(x)
    train, validation, test = (tuple(rows) for rows in parts)
    inputs, truth = (torch.cat(each) for each in zip(*pairs, strict=True))
    training = np.concatenate(train)
    mean, std = _statistics(inputs[training])
    agreed = target if isinstance(target, Target) else KINDS[kind].agreed(truth[training].numpy())
    labels = torch.from_numpy(agreed.bins(truth.numpy()))
    number = num_classes or max(int(labels.max()) + 1, 2)
    if number > _MOST_CLASSES:
        rule = f"targets must be class indices, and classes at most {_MOST_CLASSES}"
        raise ValueError(f"{rule}, got {number}; np.unique(labels, return_inverse=True) numbers classes")
    names = agreed.bin_names() or tuple(map(str, range(number)))
    return FederatedData(
        name=name,
        inputs=inputs,
        labels=labels,
        train=train,
        test=test,
        validation=validation,
        num_classes=len(names),
        mean=mean,
        std=std,
        class_names=names,
        fingerprint=_fingerprint(inputs, truth, parts),
        content=content.hexdigest() + f"-{seed}" * drawn,
        target=agreed,
        values=truth if agreed.bin_names() else None,
        named_groups=named,
        grouped_by="group" if named else "",
    )


Pair = tuple[torch.Tensor, torch.Tensor]


def to_inputs(values: Any) -> torch.Tensor:
    """Convert inputs to the types of training: uint8 images unchanged, numbers to float32, integers to int64.

    Parameters
    ----------
    values
        A tensor, an array, or nested lists, shape (N, *shape).

    Raises
    ------
    ValueError
        If they are not such numbers, or not finite as float32.
    """
    x = _tensor(values)
    if x.dtype == torch.uint8 and x.dim() == 4:
        return x
    if x.dtype == torch.uint8 and x.dim() == 3:
        raise ValueError(f"inputs of type uint8 must be (N, channels, height, width), got {tuple(x.shape)}")
    if not (x.is_floating_point() or x.dtype in (torch.uint8, torch.bool)):
        return x.to(torch.int64)
    x = x.to(torch.float32)
    if len(bad := x[~torch.isfinite(x)]):
        raise ValueError(f"inputs must be finite as float32, got {bad[0].item()}")
    return x


def to_truth(values: Any, kind: str, num_classes: int | None = None) -> torch.Tensor:
    """Convert what is known of rows, see :meth:`fedclust.data.targets.Target.read`.

    Raises
    ------
    ValueError
        If a value is not of the kind, or not one of `num_classes`.
    """
    y = _tensor(values)
    given = y.double() if y.is_floating_point() else y
    return torch.from_numpy(KINDS[kind].read(given.numpy(), num_classes))


def _kind_of_target(given: Any) -> str:
    """Return the kind of a client's targets: floats are amounts, or times and events where rows have two."""
    try:
        part = given if isinstance(given, list | tuple) and len(given) == 2 else given[0]
        y = _tensor(part[1])
    except (TypeError, LookupError, ValueError):
        return "classes"  # the client is refused by name when it is read
    if not y.is_floating_point():
        return "classes"
    return "times" if y.dim() == 2 and y.shape[1] == 2 else "amounts"


def _tensor(values: Any) -> torch.Tensor:
    if not isinstance(values, torch.Tensor):
        try:
            array = np.asarray(values)
        except ValueError as error:  # rows of different lengths
            raise ValueError(f"must be arrays, {error}") from error
        if array.dtype == object and hasattr(values, "select_dtypes"):  # a frame whose columns differ in type
            of_numbers = values.select_dtypes(["number", "bool", "boolean"])
            if of_numbers.shape == values.shape:
                array = of_numbers.to_numpy(float, na_value=np.nan)
        if array.dtype.kind not in "buif":
            how = (
                "; np.unique(labels, return_inverse=True) numbers classes" if array.dtype.kind in "US" else ""
            )
            raise ValueError(f"arrays must hold numbers, got {array.dtype}{how}")
        # Without a copy, torch warns about read-only arrays; it rejects those of a foreign byte order.
        values = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=True))
    if values.is_complex():
        raise ValueError(f"arrays must hold real numbers, got {values.dtype}")
    return values.detach().cpu()


def _read(client: int, given: Any, kind: str) -> tuple[Pair, ...]:
    """Read one client's rows, or its train, validation and test part."""
    if not isinstance(given, list | tuple) or len(given) not in (2, 3):
        rule = "must be (inputs, targets) or (train, validation, test)"
        raise ValueError(f"client {client} {rule}, got {_sort(given)}")
    if len(given) == 2:
        x, y = _pair(client, given, kind)
        if len(x) < 2:
            rule = "must have at least 2 rows, one to train and one to test on"
            raise ValueError(f"client {client} {rule}, got {len(x)}")
        return ((x, y),)
    for part, name in ((given[0], "training"), (given[2], "test")):
        if _is_empty(part):
            raise ValueError(f"client {client} must have at least one {name} row, got none")
    fitted, tested = _pair(client, given[0], kind), _pair(client, given[2], kind)
    empty = fitted[0][:0], fitted[1][:0]
    return fitted, empty if _is_empty(given[1]) else _pair(client, given[1], kind), tested


def _split(client: int, read: tuple[Pair, ...], seed: int, fraction: float) -> tuple[Pair, ...]:
    """Draw one client's train, validation and test part, unless they were given."""
    if len(read) == 3:
        return read
    ((x, y),) = read
    order = generator(seed, "test part", client).permutation(len(x))
    num_test = min(len(x) - 1, max(1, round(_TEST_SHARE * len(x))))
    test, train = np.sort(order[:num_test]), np.sort(order[num_test:])
    held = hold_out_client(len(train), fraction, seed, client)
    train, held = np.delete(train, held), train[held]
    return (x[train], y[train]), (x[held], y[held]), (x[test], y[test])


def _is_empty(part: Any) -> bool:
    sized = isinstance(part, list | tuple) and all(hasattr(values, "__len__") for values in part)
    return part is None or (sized and not any(map(len, part)))


def _pair(client: int, given: Any, kind: str) -> Pair:
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ValueError(f"client {client} must have (inputs, targets) in each part, got {_sort(given)}")
    try:
        x = to_inputs(given[0])
        y = to_truth(given[1], kind)
    except ValueError as error:
        raise ValueError(f"client {client}: {error}") from error
    if x.dim() < 2 or y.dim() not in (1, 2) or len(x) != len(y):
        rule = "must have inputs (N, *shape) and targets (N,) or (N, positions)"
        raise ValueError(f"client {client} {rule}, got {tuple(x.shape)} and {tuple(y.shape)}")
    return x, y


def _sort(given: Any) -> str:
    return f"{len(given)} values" if isinstance(given, list | tuple) else type(given).__name__


def _statistics(train: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute the mean and standard deviation of each image channel, for pixels divided by 255."""
    if train.dtype != torch.uint8:
        return (), ()
    pixels = train.double().div(255).transpose(0, 1).flatten(1)
    std = pixels.std(dim=1, correction=0)
    return tuple(pixels.mean(dim=1).tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())


def _fingerprint(inputs: torch.Tensor, labels: torch.Tensor, parts: Sequence[Sequence[IntArray]]) -> str:
    content = hashlib.sha256()
    for tensor in (inputs, labels):
        content.update(tensor.contiguous().numpy().data)
    for rows in parts:
        content.update(np.array([len(client) for client in rows]).tobytes())
    return content.hexdigest()
