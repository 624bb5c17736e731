"""Which matrices are worth their room."""

import numpy as np
import pytest

from fedclust.results.matrices import MOST_CLIENTS, without_large
from fedclust.settings.options import check_keep


def arrays(clients: int) -> dict[str, np.ndarray]:
    """Make one matrix of clients by clients, one with a further axis, and two that are neither."""
    return {
        "affinity": np.zeros((clients, clients)),
        "scores": np.zeros((clients, clients, 2)),
        "losses": np.zeros((clients, 3)),
        "names": np.array(["a", "b"]),
    }


@pytest.mark.parametrize(
    ("keep", "clients", "left_out"),
    [
        ("auto", 6, []),
        ("auto", MOST_CLIENTS, []),
        ("auto", MOST_CLIENTS + 1, ["affinity", "scores"]),
        (True, MOST_CLIENTS + 1, []),
        (False, 6, ["affinity", "scores"]),
    ],
)
def test_matrices_of_many_clients_are_left_out(keep: bool | str, clients: int, left_out: list[str]) -> None:
    kept, found = without_large(arrays(clients), keep, clients)
    assert found == left_out
    assert kept.keys() == arrays(clients).keys() - set(left_out)


@pytest.mark.parametrize("wrong", ["yes", None, 500])
def test_what_is_no_choice(wrong: object) -> None:
    with pytest.raises(ValueError, match="keep_matrices must be true, false or auto, got"):
        check_keep(wrong)
