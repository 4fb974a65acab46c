"""Every test here begins and ends with the process-wide board as it is after the import."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.overrides import _get_current_function_mode_stack, _pop_mode

from noisescope.verl.noisy_ops import BOARD
from noisescope.verl.settings import Settings


def _clear() -> None:
    BOARD.disable()
    BOARD.adopt(Settings())
    BOARD.stats.reset()


@pytest.fixture(autouse=True)
def _fresh_board() -> Iterator[None]:
    _clear()
    yield
    _clear()
    left = _get_current_function_mode_stack()
    for _ in left:
        # One test that leaves a mode behind must not fail the others.
        _pop_mode()
    assert not left
