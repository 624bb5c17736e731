import numpy as np
from scipy.stats import chi2, kstest

from fedclust.privacy.accountant import seeded, system


def test_noise_of_a_seed_can_be_drawn_again_and_depends_on_all_else() -> None:
    first = seeded(3)("mean", 2, 1, 4)
    np.testing.assert_array_equal(first, seeded(3)("mean", 2, 1, 4))
    others = [(4, "mean", 2, 1), (3, "count", 2, 1), (3, "mean", 3, 1), (3, "mean", 2, 0)]
    assert all((seeded(seed)(*rest, 4) != first).all() for seed, *rest in others)


def test_noise_of_the_system_is_normal_and_never_the_same() -> None:
    drawn = system("mean", 1, 0, 20_000)
    # n·s² is chi-square with n degrees of freedom: outside of these bounds once in a million draws.
    low, high = chi2.ppf([5e-7, 1 - 5e-7], len(drawn))
    assert low < np.square(drawn).sum() < high
    assert kstest(drawn, "norm").pvalue > 1e-6
    assert (system("mean", 1, 0, 20_000) != drawn).all()
