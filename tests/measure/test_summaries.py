"""Channel summaries survive being kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from noisescope.core.errors import BadInputError
from noisescope.measure.observer import ChannelObserver
from noisescope.measure.summaries import from_arrays, to_arrays


def test_summaries_come_back_equal() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
    with torch.no_grad(), ChannelObserver(model, ["0", "2"]) as observer:
        model(torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0)))
    written = observer.summaries()
    assert len(written) == 2 and from_arrays(to_arrays(written)) == written


def test_what_is_no_summary_is_refused() -> None:
    with pytest.raises(BadInputError, match="heads"):
        from_arrays({"x": np.zeros(2)})
