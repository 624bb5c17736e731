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

from fedclust.proof import num_set_aside
from fedclust.proof.paired import p_values, statistic

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


def votes(
    gain: float, liars: int, rare: bool, number: int, draws: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw each client's mean and variance, shape (number, clients); the gain is in standard errors."""
    shape, spread = (number, _CLIENTS, _ROWS), 0.6 / 6**0.5 if rare else 0.3
    shift = gain * spread / (_CLIENTS * _ROWS) ** 0.5
    if rare:
        differ = draws.random(shape) < 1 / 6
        rows = np.where(differ, draws.normal(6 * shift, 0.6, shape), draws.normal(0, 0.02, shape))
    else:
        rows = draws.normal(shift, 0.3, shape)
    means, variances = rows.clip(-2, 2).mean(axis=-1), rows.clip(-2, 2).var(axis=-1, ddof=1)
    means[:, :liars], variances[:, :liars] = 2.0, 0.0
    return means, variances


def passed(means: np.ndarray, variances: np.ndarray, worst: int, best: int) -> np.ndarray:
    """Say which federations' groups pass, with all votes and without the worst and the best ones."""
    order = np.argsort(means, axis=-1)
    found = np.ones(len(means), dtype=bool)
    for kept in (order, order[:, worst : means.shape[-1] - best]):
        own = (np.take_along_axis(each, kept, axis=-1) for each in (means, variances))
        found &= p_values(statistic(*own, np.full(kept.shape, float(_ROWS)))) <= _LEVEL
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=4000)
    options = parser.parse_args()
    tenth = num_set_aside(_CLIENTS)
    rules = {"none": (0, 0), "both tenths": (tenth, tenth), "best tenth": (0, tenth)}
    rows = []
    for title, gain, liars in _CASES:
        row = [title]
        for rare in (False, True):
            told = votes(gain, liars, rare, options.draws, np.random.default_rng(7))
            row += [f"{passed(*told, *rule).mean():.2f}" for rule in rules.values()]
        rows.append(row)
    header = ["", *(f"{kind}: {rule}" for kind in ("normal", "rare") for rule in rules)]
    print("\n".join(table(header, rows)))


if __name__ == "__main__":
    main()
