"""Random directions u at a model's output whose second moment E[u u^T] is the Fisher information of what it answers.

For logits with probabilities p that is diag(p) - p p^T. A sampled label gives such a direction too, but one that is
mostly small and rarely huge. Here every direction is a whole one: random signs on a set of columns c_j with
sum_j c_j c_j^T = diag(p) - p p^T. The likeliest outcomes come first, each set against all that are less likely,
c_j = sqrt(p_j R_j+1 / R_j) (e_j - p / R_j+1 on the later ones), R_j = the mass from j on; the rest share
diag(sqrt(p)) - p sqrt(p)^T / R, R their mass. Where few outcomes are likely, few signs are left to chance.

It sends nothing back, and knows no model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisescope.inject.keyed import Draw

# So many outcomes are set apart one by one; more cost time and change the spread by little.
_APART = 16
# Values of one block of rows: what stays near the processor.
_BLOCK = 1 << 20


def fisher_direction(out: Tensor, judged: Tensor, draw: Draw, *, is_logits: bool) -> Tensor:
    """A direction like the output, 0 in the rows that are not judged; without logits, answers are unit Gaussian."""
    flat, rows = out.reshape(-1, out.shape[-1]), judged.reshape(-1, 1)
    found = torch.empty_like(flat)
    step = max(1, _BLOCK // max(1, flat.shape[-1]))
    for number, first in enumerate(range(0, len(flat), step)):
        part = slice(first, first + step)
        values = flat[part].float()
        signs = draw.child(number).uniform(values).sub_(0.5)
        direction = _of_softmax(values, signs) if is_logits else torch.ones_like(values).copysign_(signs)
        found[part] = direction.mul_(rows[part])
    return found.view(out.shape)


def _of_softmax(logits: Tensor, signs: Tensor) -> Tensor:
    tiny = torch.finfo(torch.float32).tiny
    p = logits.softmax(-1)
    top, where = p.topk(min(_APART, p.shape[-1]), dim=-1)
    rest = p.scatter_(-1, where, 0.0)
    mass = rest.sum(-1, keepdim=True)
    # What is left from each of the top outcomes on: summed from the small end, so that nothing cancels.
    left = top.flip(-1).cumsum(-1).flip(-1) + mass
    behind = torch.cat([left[:, 1:], mass], dim=-1)
    size = (top * behind / left.clamp(min=tiny)).sqrt().copysign(signs.gather(-1, where))
    share = torch.where(behind > 0.0, size / behind.clamp(min=tiny), 0.0)
    before = share.cumsum(-1)
    spread = rest.sqrt().copysign_(signs)
    drawn = torch.where(mass > 0.0, spread.sum(-1, keepdim=True) / mass.clamp(min=tiny), 0.0)
    found = spread.sub_(rest.mul_(drawn + before[:, -1:]))
    return found.scatter_(-1, where, size - top * (before - share))
