"""How far two computations of the same numbers are from each other."""
from __future__ import annotations

# Relative errors of f32 logits up to this, or up to so many times what units in the last place of weights make, are rounding.
AUDIT_TOLERANCE, AUDIT_FACTOR = 1e-4, 8
# In place of a distance that is not finite.
FAR = 1e30


def relative(ours, truth) -> float:
    import torch

    if ours.numel() == 0:
        return 0.0
    ours, truth = ours.float(), truth.float()
    gap = float((ours - truth).abs().max() / truth.abs().max().clamp_min(1e-30))
    return gap if torch.isfinite(torch.tensor(gap)) else float("inf")


def exact_gap(ours, truth) -> float:
    """The largest difference relative to the largest value, in f64: `relative` rounds to f32, which hides differences of f64 runs."""
    import torch

    if ours.numel() == 0:
        return 0.0
    ours, truth = ours.to(torch.float64), truth.to(torch.float64)
    gap = float(torch.where(ours == truth, 0.0, ours - truth).abs().max() / truth.abs().max().clamp_min(1e-30))
    return gap if gap == gap else float("inf")


def tap_distances(base, member, first: int):
    """The distance of each row from the base's rows from `first` on: rms of the difference over the rms of the row, or over a twentieth of that of all
    rows where that is more."""
    import torch

    base, member = base.double().flatten(1), member.double().flatten(1)
    squares = torch.where(base.isfinite(), base, 0.0).square()
    least = 0.05 * float(squares.mean().sqrt())
    base, squares = base[first:], squares[first:]
    gap = torch.where(base == member, 0.0, member - base).square().mean(1).sqrt()
    gap = torch.where(gap == 0, 0.0, gap / squares.mean(1).sqrt().clamp_min(least))
    return torch.where(gap.isfinite(), gap, FAR)


def state_distance(base, member) -> float:
    """The rms of the difference over the rms of the base."""
    import torch

    base, member = base.double(), member.double()
    gap = torch.where(base == member, 0.0, member - base).square().mean().sqrt()
    gap = float(gap / base.square().mean().sqrt() if gap != 0 else gap)
    return gap if gap < FAR else FAR


def logit_distances(base, member):
    """`[2, rows]`: the rms difference of log-probabilities, and the KL divergence of the member from the base. `base` are log-probabilities in f64."""
    import torch

    there = base.isfinite()
    gap = torch.where(there, torch.log_softmax(member.double(), -1) - base, 0.0)
    rms = (gap.square().sum(-1) / there.sum(-1)).sqrt()
    both = torch.stack([rms, (torch.where(there, base.exp(), 0.0) * -gap).sum(-1).clamp_min(0.0)])
    return torch.where(both.isfinite(), both, FAR)
