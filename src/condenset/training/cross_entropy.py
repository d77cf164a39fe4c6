"""The gradient that a training step starts from.

Shapes: N images, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from condenset import kernels
from condenset.kernels import cross_entropy as cross_entropy_kernel


def logit_gradient(logits_NC: Tensor, labels: Tensor, share: Tensor | None = None) -> Tensor:
    """Return the gradient of the mean cross-entropy with respect to the logits.

    Args:
        logits_NC: The logits.
        labels: (N,) classes, or (N, C) probabilities.
        share: The weight of an image's own label; the label of the image before it has the rest. None: all.
    """
    if labels.ndim == 1 and kernels.available(logits_NC):
        return cross_entropy_kernel.gradient(logits_NC.detach(), labels, share)
    with torch.enable_grad():
        logits = logits_NC.detach().float().requires_grad_()
        loss = F.cross_entropy(logits, labels)
        if share is not None:
            loss = share * loss + (1 - share) * F.cross_entropy(logits, labels.roll(1, 0))
        (gradient,) = torch.autograd.grad(loss, logits)
    return gradient.to(logits_NC.dtype)
