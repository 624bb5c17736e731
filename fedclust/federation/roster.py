"""Who has joined a federation, in which round, and what each client said of itself."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedclust.records import Description, Names

__all__ = ["Roster"]

_COUNTS = ("train_counts", "test_counts")


class Roster:
    """The clients of a federation in the order in which they joined, which is that of their ids.

    All runs over one federation share it: those that a run is compared with have every client join in the
    round in which it joined that run.

    Parameters
    ----------
    joined
        The round in which each client joined, 0 for those at the start, in ascending order, shape (K,).

    Attributes
    ----------
    answers
        What clients said of themselves, by client id; also of clients that take no part.
    earlier
        What they said before a run was interrupted, for those that have left.
    open
        Whether clients may still join.
    """

    def __init__(self, joined: Sequence[int]) -> None:
        self.joined = list(map(int, joined))
        self.answers: dict[int, Description] = {}
        self.earlier: dict[int, Description] = {}
        self.open = True

    def count(self, server_round: int | None = None) -> int:
        """Count the clients that have joined by a round; all of them for None."""
        if server_round is None:
            return len(self.joined)
        return sum(each <= server_round for each in self.joined)

    def add(self, server_round: int, answers: Sequence[Description]) -> None:
        """Add clients that join in a round."""
        for answer in answers:
            self.answers[len(self.joined)] = answer
            self.joined.append(server_round)

    def pack(self, num_clients: int, described: Collection[int]) -> dict[str, Any]:
        """List the first K clients as arrays and text by name, for a checkpoint.

        Parameters
        ----------
        num_clients
            Number of clients K.
        described
            Ids of all of them if their answers are known; else none.
        """
        packed: dict[str, Any] = {"joined": np.array(self.joined[:num_clients], dtype=np.int64)}
        if not described:
            return packed
        answers = [self.answers[client] for client in described]
        packed |= {name: np.stack([getattr(each, name) for each in answers]) for name in _COUNTS}
        packed["num_validation"] = np.array([each.num_validation for each in answers], dtype=np.int64)
        first = answers[0]
        shared = {
            "groups": [each.group for each in answers],
            "names": [each.name for each in answers],
            "mean": first.mean,
            "std": first.std,
            "classes": first.names.classes,
            "left_out": dict(first.names.left_out),
        }
        return packed | {"described": json.dumps(shared)}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> "Roster | None":
        """Make it from what :meth:`pack` listed; None if there is nothing, as in older checkpoints."""
        if "joined" not in packed:
            return None
        roster = cls(np.asarray(packed["joined"]).tolist())
        if "described" in packed:
            shared = json.loads(str(packed["described"]))
            names = Names(tuple(shared["classes"]), shared["left_out"])
            train, test = (np.asarray(packed[name]) for name in _COUNTS)
            for client in range(len(roster.joined)):
                roster.earlier[client] = Description(
                    train[client],
                    test[client],
                    shared["groups"][client],
                    tuple(shared["mean"]),
                    tuple(shared["std"]),
                    shared["names"][client],
                    names,
                    int(np.asarray(packed["num_validation"])[client]),
                )
        return roster
