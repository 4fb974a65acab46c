"""The four classical probes of a layer, from its response to noise; the floor beside which the default is shown.

They ask whether a layer is odd among layers, so they rank every model, a healthy one as well: they never find that
there is no fault. It takes responses in and asks for no run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from noisescope.diagnose.localization import Evidence, Localization, Suspect, Verdict

Floats = npt.NDArray[np.float64]
EPS = 1e-9
# A score that hardly any layer of a model with like layers reaches by chance: two probes at three deviations each.
STANDS_OUT = 6.0
_NAMES = ("monotonicity", "smoothness", "input invariance", "variance compression")


def probes(responses: npt.ArrayLike, scales: Sequence[float]) -> Floats:
    """The four figures of every layer [layer, probe] from responses [layer, scale, input].

    A: squared rank correlation of response and scale. B: distance of the log response from the mean of the layers
    beside it. C: coefficient of variation over inputs. D: slope of the response against the scale.
    """
    r = np.asarray(responses, dtype=np.float64)
    means = r.mean(2)
    monotone = [_rank_correlation(scales, row) ** 2 for row in means]
    size = np.log(means.mean(1) + EPS)
    beside = [np.mean([size[j] for j in (i - 1, i + 1) if 0 <= j < len(size)]) for i in range(len(size))]
    rough = np.abs(size - np.array(beside)) if len(size) > 1 else np.zeros(len(size))
    spread = (r.std(2) / (means + EPS)).mean(1)
    slope = [float(np.polyfit(scales, row, 1)[0]) for row in means]
    return np.stack([monotone, rough, spread, slope], axis=1)


def _rank_correlation(scales: Sequence[float], row: Floats) -> float:
    if len(set(row.tolist())) < 2:
        return 0.0
    return float(stats.spearmanr(scales, row).statistic)


def scores(figures: Floats) -> tuple[Floats, Floats]:
    """max(0, -zA) + 1.5 max(0, zB) + max(0, zC) + 1.5 max(0, -zD) of every layer, and its four terms."""
    spread = figures.std(0)
    z = np.where(spread > 0, (figures - figures.mean(0)) / np.where(spread > 0, spread, 1.0), 0.0)
    terms = np.maximum(0.0, z * np.array([-1.0, 1.0, 1.0, -1.0])) * np.array([1.0, 1.5, 1.0, 1.5])
    return terms.sum(1), terms


def conclude_classic(responses: npt.ArrayLike, scales: Sequence[float], paths: Sequence[str]) -> Localization:
    """Every layer by its score, the oddest first."""
    totals, terms = scores(probes(responses, scales))
    order = np.argsort(-totals, kind="stable")
    suspects = tuple(_suspect(int(i), paths[i], float(totals[i]), terms[i]) for i in order)
    stands_out = bool(len(totals)) and math.isfinite(totals.max()) and totals.max() >= STANDS_OUT
    verdict: Verdict = "fault" if stands_out else "undecided"
    decides = "" if stands_out else "No layer stands out among the others. The default method checks each on its own."
    return Localization(verdict, suspects, "classic", checked=len(paths), would_decide=decides)


def _suspect(layer: int, path: str, score: float, terms: Floats) -> Suspect:
    evidence = tuple(
        Evidence(name, float(term), 0, 0, f"{name} adds {term:.2f}")
        for name, term in zip(_NAMES, terms, strict=True)
        if term > 0
    )
    return Suspect(layer, "layer", path, score, evidence)
