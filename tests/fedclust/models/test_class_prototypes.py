from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from fedclust.data.dataset import FederatedData
from fedclust.models import class_prototypes as module, embeddings


class Doubling:
    """Embeds a row of numbers as twice itself, and remembers what it was asked for."""

    dimension = 2

    def __init__(self, fingerprint: str = "doubling") -> None:
        self.fingerprint = fingerprint
        self.seen: list[torch.Tensor] = []
        self.statistics: list[tuple] = []  # type: ignore[type-arg]

    def encode(self, inputs, mean=(), std=(), device="cpu") -> torch.Tensor:
        self.seen.append(inputs)
        self.statistics.append((mean, std, device))
        return 2 * inputs


INPUTS = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0], [7.0, 7.0], [9.0, 9.0]])
LABELS = torch.tensor([0, 0, 1, 2, 1])
EXAMPLES = module.Examples(INPUTS, LABELS, 3)


def of_one_class(inputs: torch.Tensor) -> module.Examples:
    return module.Examples(inputs, torch.zeros(len(inputs), dtype=torch.int64), 1)


def rows(*clients: list[int]) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [np.array(client, dtype=np.int64) for client in clients]


def test_batches_run_across_clients_and_read_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embeddings, "_BATCH", 3)
    encoder = Doubling()
    module.prototypes(encoder, EXAMPLES._replace(mean=(0.5,), std=(2.0,)), rows([4, 0], [1], [2]))
    assert [len(batch) for batch in encoder.seen] == [3, 1]
    assert torch.equal(torch.cat(encoder.seen), INPUTS[[4, 0, 1, 2]])
    assert encoder.statistics == [((0.5,), (2.0,), "cpu")] * 2


def test_nobody_has_anything() -> None:
    encoder = Doubling()
    found = module.prototypes(encoder, EXAMPLES, rows([], []))
    assert found.means.shape == (2, 3, 2)
    assert not any(values.any() for values in found)
    assert encoder.seen == []


@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_neither_batches_nor_the_order_of_rows_matter(batch_size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.normal(size=(20, 2)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 3, 20))
    clients = [*np.array_split(rng.permutation(20)[:15], 4), np.zeros(0, dtype=np.int64)]  # 5 are nobody's
    examples = module.Examples(inputs, labels, 3)
    means, counts = module.prototypes(Doubling(), examples, clients)
    shuffled = [rng.permutation(client) for client in clients]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embeddings, "_BATCH", batch_size)
        other = module.prototypes(Doubling(), examples, shuffled)
    np.testing.assert_allclose(other.means, means, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(other.counts, counts)
    assert (means.dtype, counts.dtype) == (np.float32, np.int64)
    for k, client in enumerate(clients):
        for c in range(3):
            own = [row for row in client if labels[row] == c]
            assert counts[k, c] == len(own)
            if own:
                np.testing.assert_allclose(means[k, c], 2 * inputs[own].mean(0), rtol=1e-5, atol=1e-6)
            else:
                assert not means[k, c].any()


def federation(fingerprint: str = "data") -> FederatedData:
    held = {"train": tuple(rows([0, 1], [2], [4])), "test": tuple(rows([3], [], []))}
    classes = {"num_classes": 3, "class_names": ("a", "b", "c"), "groups": None}
    told = {"name": "toy", "fingerprint": fingerprint, "mean": (), "std": ()}
    return FederatedData(inputs=INPUTS, labels=LABELS, **held, **classes, **told)


def test_the_second_time_nothing_is_encoded(tmp_path: Path) -> None:
    first = module.cached_prototypes(Doubling(), federation(), [2, 0], cache_dir=tmp_path)
    again = Doubling()
    second = module.cached_prototypes(again, federation(), [2, 0], cache_dir=tmp_path)
    assert again.seen == []
    expected = module.prototypes(Doubling(), EXAMPLES, rows([4], [0, 1]))  # in the order asked for
    for stored, fresh, wanted in zip(second, first, expected, strict=True):
        np.testing.assert_array_equal(stored, wanted)
        np.testing.assert_array_equal(fresh, wanted)


def test_other_data_another_encoder_and_other_clients_are_encoded(tmp_path: Path) -> None:
    module.cached_prototypes(Doubling(), federation(), [0, 1], cache_dir=tmp_path)
    asked = [
        (Doubling(), federation("other"), [0, 1]),
        (Doubling("other"), federation(), [0, 1]),
        (Doubling(), federation(), [0]),
        (Doubling(), federation(), [1, 0]),
    ]
    for encoder, data, clients in asked:
        module.cached_prototypes(encoder, data, clients, cache_dir=tmp_path)
        assert encoder.seen


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    several = replace(federation(), labels=torch.zeros(5, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="labels must have shape"):
        module.cached_prototypes(Doubling(), several, [0], cache_dir=tmp_path)
    encoder = Doubling()
    module.cached_prototypes(encoder, federation(), [0], cache_dir=tmp_path)
    assert encoder.seen


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot make the cache folder"):
        module.cached_prototypes(Doubling(), federation(), [0], cache_dir=tmp_path / "file")
