"""Who has joined a federation, in which round, and what each client said of itself."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.serverapp import Grid

from fedclust.federation.asking import send_questions
from fedclust.federation.descriptions import Descriptions, check_fits
from fedclust.messages import (
    QUERY_DESCRIPTION,
    BadReply,
    Description,
    Names,
    description_question,
    read_description,
)
from fedclust.privacy.settings import Tells

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

    def admit(
        self,
        grid: Grid,
        server_round: int,
        described: Callable[[], Descriptions],
        tells: Tells,
        timeout: float,
    ) -> None:
        """Ask the clients that are waiting to describe themselves, and let those join that fit.

        Parameters
        ----------
        grid
            The clients; only a grid that has newcomers can have somebody waiting.
        server_round
            The round in which they join.
        described
            Returns what the others said of themselves; called only if somebody is waiting.
        tells, timeout
            As for :class:`fedclust.federation.Federation`.
        """
        door: Any = grid
        places = door.newcomers() if hasattr(grid, "newcomers") else []
        if not places:
            return
        asked, others = door.admit(places), described()
        question = description_question(tells)
        answers = send_questions(grid, QUERY_DESCRIPTION, asked, question, timeout)
        door.withdraw(len(asked))
        fitting: dict[int, Description] = {}
        for client, place in zip(asked, places, strict=True):
            try:
                if client in answers.failures:
                    raise BadReply(answers.failures[client])
                answer = read_description(answers.replies[client], tells=tells)
                check_fits(answer, others)
            except BadReply as error:
                door.refuse(place, str(error).removeprefix(f"client {client}: "))
            else:
                fitting[place] = answer
        door.admit(list(fitting))
        for answer in fitting.values():
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
