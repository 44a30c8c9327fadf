"""GPG (arXiv 2504.02546): the plain policy gradient, averaged over tokens.

    J = sum_{i,t} A log pi / tokens

A advantage. It differs from REINFORCE in the mean over the tokens of the batch. The paper also divides the advantage by
the share of answers that have a signal; that constant of the batch is a matter of the advantage, not of the loss.
"""

from fspo.objectives.sequence.reinforce import REINFORCE


class GPG(REINFORCE):
    """REINFORCE with a mean over tokens."""

    name = "gpg"
    label = "GPG"
    summary = "advantage times log-prob, no ratio and no clip, mean over tokens: for on-policy data"
    aggregation = "token_mean"
