"""Compare two models where a client gives only its loss of each: every client has one vote.

A loss may be on any scale, so its size says little. A client votes for model B if B's loss is lower than A's
by more than a share of A's, and for A otherwise. A vote is a difference of full size, 2 or −2, of one row,
and :func:`fedclust.proof.compare` tests votes as it tests rows: here clients count. Of fewer than 120 votes
the test is the exact one of their number, see :func:`fedclust.proof.paired.p_value`: eight votes of eight for
B have a p-value of 1/256, and five are too few for a level of 2.5 %.
"""

import numpy as np

from fedclust.proof.paired import LARGEST_BRIER, Evidence, evidence
from fedclust.proof.words import Words

MARGIN = 0.01
"""Share of a loss that counts as none."""

FEWEST = 6
"""Votes that can show something at a level of 2.5 %: six of six have a p-value of 1/64, five of five 1/32."""


def vote(loss_a: float, loss_b: float, margin: float = 0.0) -> Evidence:
    """Compare a client's losses of two models.

    Parameters
    ----------
    loss_a, loss_b
        Its losses of A and of B; of one that is not finite the other is better.
    margin
        Share of A's loss by which B's must be lower for a vote for B, in [0, 2).

    Returns
    -------
    Evidence of one row, without any where neither loss is finite.

    Examples
    --------
    >>> vote(0.7, 0.2).mean, vote(0.7, 0.7).mean, vote(0.700, 0.699, margin=0.01).mean
    (2.0, -2.0, -2.0)
    >>> vote(float("nan"), float("nan")).count
    0
    """
    finite = np.isfinite([loss_a, loss_b])
    if not finite.any():
        return evidence(np.zeros(0), [margin])
    better = bool(finite[1] and (not finite[0] or loss_a - loss_b > margin * abs(loss_a)))
    return evidence(np.array([LARGEST_BRIER if better else -LARGEST_BRIER]), [margin])


class LossWords(Words):
    """What a verdict says of votes."""

    def lower(self, of: str, gain: float) -> str:
        """Say whether losses are lower for most clients, or higher."""
        return f"{of.format('loss')} is {'lower' if gain > 0 else 'not lower'} for most clients"


LOSSES = LossWords()
