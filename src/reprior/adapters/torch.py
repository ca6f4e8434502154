"""Tensors in, tensors out: estimate and correct in a training or evaluation loop, on the tensors' device."""

from __future__ import annotations

from typing import Any

import torch

from reprior._check import as_array, check_prior, fail
from reprior.batch.registry import estimate as estimate_array
from reprior.estimates.estimate import PriorEstimate

HALF_TOLERANCE = 0.03  # of the row sums of half-precision tensors


def estimate(source: Any, proba: torch.Tensor, method: str = "ebls", **options: Any) -> PriorEstimate:
    """Estimate the target prior from a tensor `proba` (n, K) of any float type, on any device.

    `source` is class counts (K,), as an array or a tensor, or a `Source`. Fields of the estimate are NumPy arrays.
    """
    if not isinstance(proba, torch.Tensor):
        fail("estimate", "proba", "be a tensor", type(proba).__name__, remedy="For arrays use `reprior.estimate`")
    rows = proba.detach()
    if rows.dtype in (torch.bfloat16, torch.float16):  # two or three digits: a softmax in them sums to 1 only roughly
        rows = rows.float()
        sums = rows.sum(dim=1, keepdim=True)
        rows = rows / sums if bool(((sums - 1).abs() < HALF_TOLERANCE).all()) else rows
    return estimate_array(source, rows, method, **options)


def adapt(source: Any, proba: torch.Tensor, method: str = "ebls", **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the estimated prior (K,) of a tensor `proba` (n, K), and `proba` corrected to it, both on its device."""
    estimated = estimate(source, proba, method, **options)
    wide = torch.float64 if proba.dtype == torch.float64 else torch.float32
    return torch.as_tensor(estimated.prior, dtype=wide, device=proba.device), correct(proba, estimated.weights)


def correct(proba: torch.Tensor, weights: Any) -> torch.Tensor:
    """Return `proba` (n, K) reweighted to another prior (eq. 8): same type and device, differentiable.

    `weights` (K,) is target prior / source prior, as in `PriorEstimate.weights`.
    """
    factors = torch.as_tensor(check_prior(weights, "correct", "weights", allow_zero=True), device=proba.device)
    joint = _rows(proba, len(factors)) * factors.to(proba.dtype)
    return joint / joint.sum(dim=1, keepdim=True)


def correct_logits(logits: torch.Tensor, weights: Any) -> torch.Tensor:
    """Return `logits` (n, K) moved to another prior by adding log weights: same type and device, differentiable."""
    factors = check_prior(weights, "correct_logits", "weights")
    return _rows(logits, len(factors)) + torch.as_tensor(factors, device=logits.device).log().to(logits.dtype)


def _rows(x: torch.Tensor, n_classes: int) -> torch.Tensor:
    if x.ndim != 2 or x.shape[1] != n_classes:
        fail(
            "correct", "proba", f"have shape (n, {n_classes})", f"shape {tuple(as_array(x, 'correct', 'proba').shape)}"
        )
    return x
