"""The members of a cluster, the positions of clients among them, and the parts of a split."""

import numpy as np

from fedclust.typing import IntArray


def member_ids(members: IntArray) -> IntArray:
    """Sort the ids of a cluster's clients.

    Parameters
    ----------
    members
        Client ids in any order, shape (K,).

    Raises
    ------
    ValueError
        If there are no members or one is listed twice.
    """
    ids = np.unique(np.asarray(members, dtype=np.int64))
    if not len(ids) or len(ids) < len(members):
        raise ValueError(
            f"members must be different clients, at least one, got {np.asarray(members).tolist()}"
        )
    return ids


def positions_of(clients: IntArray, members: IntArray) -> IntArray:
    """Find the positions of clients among the members of a cluster.

    Parameters
    ----------
    clients
        Client ids, shape (n,).
    members
        Ids of the cluster's clients, sorted, shape (K,).

    Returns
    -------
    Their positions in `members`, shape (n,).

    Raises
    ------
    ValueError
        If a client is not a member or is listed twice.
    """
    ids = np.asarray(clients, dtype=np.int64)
    positions = np.searchsorted(members, ids)
    unknown = members.take(positions, mode="clip") != ids
    if unknown.any():
        raise ValueError(f"clients must be members of the cluster, got client {ids[unknown][0]}")
    if len(np.unique(ids)) < len(ids):
        raise ValueError(f"clients must be named once each, got {ids.tolist()}")
    return positions


def check_parts(labels: IntArray, num_members: int) -> list[IntArray]:
    """List the positions of each part's members.

    Parameters
    ----------
    labels
        Part of each member, shape (K,).
    num_members
        Number of members K.

    Returns
    -------
    Positions, ascending, of each part in the order of their numbers.

    Raises
    ------
    ValueError
        If `labels` does not have one entry per member or skips a number.
    """
    labels = np.asarray(labels)
    if labels.shape != (num_members,):
        raise ValueError(f"labels must have shape {(num_members,)}, got {labels.shape}")
    numbers = np.unique(labels)
    if not np.array_equal(numbers, np.arange(len(numbers))):
        raise ValueError(f"labels must be 0, 1, … without gaps, got {numbers.tolist()}")
    return [np.flatnonzero(labels == number) for number in numbers]
