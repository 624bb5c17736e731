"""What invented votes do to the test of docs/PROOF.md, and what guarding against them costs: its last table.

    python benchmarks/invented_votes.py [--draws 2000]

Prints, in Markdown, how often groups are called better: 30 clients with 5 held-out rows each, differences of
Brier scores that are normal with standard deviation 0.3, or that hardly differ in five rows of six and have
standard deviation 0.6 in the sixth. Liars vote +2 with variance 0. Compared: no votes set aside; the most
and the least favourable tenth, which is what fedclust does; and the most favourable tenth alone.
"""

import argparse

import numpy as np
from federations import table

from fedclust.proof import compare, num_set_aside

_CLIENTS, _ROWS, _LEVEL = 30, 5, 0.05
# Titles; gain of the honest in standard errors of their mean; liars.
_CASES = (
    ("no gain", 0.0, 0),
    ("gain of 2 standard errors", 2.0, 0),
    ("gain of 2.5", 2.5, 0),
    ("gain of 3", 3.0, 0),
    ("gain of 4", 4.0, 0),
    ("no gain, one liar", 0.0, 1),
    ("no gain, three liars", 0.0, 3),
    ("loss of 1, one liar", -1.0, 1),
    ("loss of 1, three liars", -1.0, 3),
    ("loss of 2, three liars", -2.0, 3),
)


def votes(gain: float, liars: int, rare: bool, draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw each client's mean and variance, shape (clients,); the gain is in standard errors."""
    shape, spread = (_CLIENTS, _ROWS), 0.6 / 6**0.5 if rare else 0.3
    shift = gain * spread / (_CLIENTS * _ROWS) ** 0.5
    if rare:
        differ = draws.random(shape) < 1 / 6
        rows = np.where(differ, draws.normal(6 * shift, 0.6, shape), draws.normal(0, 0.02, shape)).clip(-2, 2)
    else:
        rows = draws.normal(shift, 0.3, shape).clip(-2, 2)
    means, variances = rows.mean(axis=1), rows.var(axis=1, ddof=1)
    means[:liars], variances[:liars] = 2.0, 0.0
    return means, variances


def one_sided(means: np.ndarray, variances: np.ndarray) -> float:
    """Compute the p-value if only the most favourable tenth is set aside."""
    kept = np.argsort(means)[: -num_set_aside(len(means))]
    of_all, of_kept = (
        compare(means[rows], variances[rows], [_ROWS] * len(rows)).p_value
        for rows in (np.arange(len(means)), kept)
    )
    return max(of_all, of_kept)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=2000)
    options = parser.parse_args()
    rows, counts = [], [_ROWS] * _CLIENTS
    for title, gain, liars in _CASES:
        row = [title]
        for rare in (False, True):
            draws, passed = np.random.default_rng(7), np.zeros(3)
            for _ in range(options.draws):
                told = votes(gain, liars, rare, draws)
                p_values = [
                    compare(*told, counts).p_value,
                    compare(*told, counts, set_aside=num_set_aside(_CLIENTS)).p_value,
                    one_sided(*told),
                ]
                passed += np.array(p_values) <= _LEVEL
            row += [f"{share:.3f}" for share in passed / options.draws]
        rows.append(row)
    rules = ("none", "both tenths", "best tenth")
    header = ["", *(f"{kind}: {rule}" for kind in ("normal", "rare") for rule in rules)]
    print("\n".join(table(header, rows)))


if __name__ == "__main__":
    main()
