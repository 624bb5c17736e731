import numpy as np
import pytest

from fedclust.support.rng import generator, torch_seed


def test_same_arguments_same_draws() -> None:
    np.testing.assert_array_equal(
        generator(1, "sample", 2, 3).random(5), generator(1, "sample", 2, 3).random(5)
    )


@pytest.mark.parametrize(
    "other", [(2, "sample", 2, 3), (1, "batches", 2, 3), (1, "sample", 3, 2), (1, "sample", 2)]
)
def test_each_argument_changes_the_draws(other: tuple) -> None:
    assert not np.allclose(generator(*other).random(5), generator(1, "sample", 2, 3).random(5))


def test_a_trailing_zero_key_is_a_key() -> None:
    # numpy's SeedSequence takes (a,) and (a, 0) for the same entropy.
    assert generator(1, "sample", 2).random() != generator(1, "sample", 2, 0).random()


def test_torch_seed_fits_a_signed_integer() -> None:
    seeds = [torch_seed(0, "dropout", key) for key in range(50)]
    assert len(set(seeds)) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("arguments", [(-1, "sample"), (0, "sample", -1)])
def test_negative_keys_are_refused(arguments: tuple) -> None:
    with pytest.raises(ValueError, match="must be >= 0"):
        generator(*arguments)
