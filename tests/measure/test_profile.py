"""A profile sums its sites up, scales with the square, and comes back from a run folder as it went in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from noisescope.core.errors import BadInputError
from noisescope.core.records import Site
from noisescope.measure.profile import Profile
from noisescope.sweep.store import About, Store

Q = Site(0, "linear", "layers.0.q_proj")
K = Site(0, "linear", "layers.0.k_proj")
HEAD = Site(None, "linear", "lm_head")


def planted() -> Profile:
    channels = {Q: np.array([0.1, 0.2]), K: np.array([1 / 3, 0.0, 1e-300]), HEAD: np.array([2.0])}
    return Profile(0.05, 12, 2, {site: float(values.sum()) for site, values in channels.items()}, channels)


def test_harm_sums_over_the_sites_of_a_layer_and_operator() -> None:
    assert planted().harm == pytest.approx({(0, "linear"): 0.3 + 1 / 3, (None, "linear"): 2.0})


def test_harm_grows_with_the_square_of_the_scale() -> None:
    scaled = planted().at_scale(0.1)
    assert scaled.scale == 0.1
    assert scaled.by_site[HEAD] == pytest.approx(8.0)
    assert scaled.channels[Q] == pytest.approx([0.4, 0.8])


def test_a_run_folder_gives_back_every_bit(tmp_path: Path) -> None:
    profile = planted()
    with Store(tmp_path / "run", About("model", "workload")) as store:
        again = Profile.from_arrays(store.load_blob(store.save_blob(profile.to_arrays())))
    assert list(again.by_site.items()) == list(profile.by_site.items())
    assert (again.scale, again.tokens, again.draws) == (0.05, 12, 2)
    assert all(np.array_equal(again.channels[site], values) for site, values in profile.channels.items())


def test_other_arrays_are_refused() -> None:
    arrays = planted().to_arrays()
    with pytest.raises(BadInputError, match="not those of a profile"):
        Profile.from_arrays({"0": np.zeros(2)})
    with pytest.raises(BadInputError, match=r"3 sites lacks layers\.0\.k_proj"):
        Profile.from_arrays({name: array for name, array in arrays.items() if name != "1"})
    with pytest.raises(BadInputError, match="not JSON"):
        Profile.from_arrays(arrays | {"head": np.arange(3, dtype=np.uint8)})
