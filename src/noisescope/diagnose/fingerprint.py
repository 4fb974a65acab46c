"""Concludes from the pattern of a divergence whose it is: that of the place where noise leaves the most alike one.

A pattern says at every border of the model, for every prompt and position, how far two runs are apart. What noise in a
place leaves there on the good system is the fingerprint of that place. It takes patterns in and asks for no run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from noisescope.core.records import Site
from noisescope.diagnose.localization import Evidence, Localization, Opinion, Suspect, Verdict

Floats = npt.NDArray[np.float64]
CONFIDENCE = 0.95
# A rise of this many times the largest of a healthy system is none of rounding.
CLEAR_RISE = 3.0
_DRAWS, _LISTED = 400, 5
# Below this share of what is usual there is nothing to compare with.
_TINY = 0.1


@dataclass(frozen=True)
class Seen:
    """Of the suspect system: whether it leaves the healthy band, whether it is the reference to the last bit.

    `alike` says that both run the same kernels, so that even a difference within the band is odd. `opinion` is what the
    comparison of activations says, if it says anything. `notes` tell how the patterns were made. `rising` is given
    where patterns are of rises: the largest that a healthy system shows.
    """

    leaves_band: bool
    identical: bool
    alike: bool
    opinion: Opinion | None = None
    notes: tuple[str, ...] = ()
    rising: float | None = None


def pattern(divergence: Floats, healthy: Floats, groups: Floats | None = None) -> Floats:
    """Decades above what is healthy, [border, entry], with a border in front at which nothing differs: the input.

    A divergence far below what is healthy counts as none; both are relative to the size of the values. With `groups`,
    the prompt of each entry, a token counts what was off at it or before it in its prompt: attention carries all of
    that to it.
    """
    whole = divergence if groups is None else _so_far(divergence, groups)
    return _behind_the_input(0.5 * np.log10(1 + (whole / healthy[:, None]) ** 2))


def presence(divergence: Floats, least: float, groups: Floats | None = None) -> Floats:
    """The same of two systems that compute alike to the last bit: 1 where anything differs by more than `least`."""
    whole = divergence if groups is None else _so_far(divergence, groups)
    return _behind_the_input((whole > least).astype(np.float64))


def rise(divergence: Floats, healthy: Floats) -> Floats:
    """How many times more each border adds to the divergence than it does on a healthy system, [border, entry].

    Logarithms of the ratio to `healthy`, which is what rounding does to each entry, and their steps from one border to
    the next. Before a fault both grow alike, whatever rounding does there; at the fault one steps up.
    """
    usual = np.maximum(healthy, _TINY * np.median(healthy, axis=1, keepdims=True) + 1e-30)
    # What copies values, such as an embedding, rounds nothing: there nothing is as usual.
    ratio = np.where((healthy == 0) & (divergence == 0), 1.0, divergence / usual)
    above: Floats = np.log(np.maximum(ratio, _TINY))
    return above - _after_nothing(above)


def _after_nothing(found: Floats) -> Floats:
    """What was at the border before; nothing before the first."""
    return np.concatenate([np.zeros((1, found.shape[1])), found[:-1]])


def pooled(found: Floats) -> Floats:
    """The mean over all entries: a rise is seen over them, not in one."""
    whole: Floats = found.mean(-1, keepdims=True)
    return whole


def _behind_the_input(found: Floats) -> Floats:
    return np.concatenate([np.zeros((1, found.shape[1])), found])


def _so_far(divergence: Floats, groups: Floats) -> Floats:
    found = np.empty_like(divergence)
    for group in np.unique(groups):
        chosen = groups == group
        squares = np.cumsum(divergence[:, chosen] ** 2, axis=1)
        found[:, chosen] = np.sqrt(squares / np.arange(1, chosen.sum() + 1))
    return found


def likeness(suspect: Floats, prints: Floats) -> Floats:
    """Correlation of a pattern with each fingerprint [place, border, entry], along the borders of every entry."""
    a, b = suspect - suspect.mean(0), prints - prints.mean(1, keepdims=True)
    size = np.sqrt((a * a).sum() * (b * b).sum((1, 2)))
    return np.where(size > 0, (a * b).sum((1, 2)) / np.where(size > 0, size, 1.0), 0.0)


def confidence_in(
    suspect: Floats, prints: Floats, best: int, groups: Floats, seed: int, *, pools: bool = False
) -> float:
    """In what share of draws of prompts, or of tokens where there are few prompts, the best place stays the best."""
    blocks = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    blocks = blocks if len(blocks) > 2 else [np.array([i]) for i in range(len(groups))]
    drawn = np.random.default_rng(seed).integers(0, len(blocks), (_DRAWS, len(blocks)))
    a, b = suspect - suspect.mean(0), prints - prints.mean(1, keepdims=True)
    scores = _pooled_scores(a, b, blocks, drawn) if pools else _scores(a, b, blocks, drawn)
    return float((scores.argmax(0) == best).mean())


def _scores(a: Floats, b: Floats, blocks: Sequence[npt.NDArray[np.intp]], drawn: npt.NDArray[np.int64]) -> Floats:
    """[place, draw], of which the best of each draw counts."""
    dots = np.stack([(a[:, block] * b[:, :, block]).sum((1, 2)) for block in blocks], 1)
    sizes = np.stack([(b[:, :, block] ** 2).sum((1, 2)) for block in blocks], 1)
    found: Floats = dots[:, drawn].sum(2) / np.sqrt(np.maximum(sizes[:, drawn].sum(2), 1e-300))
    return found


def _pooled_scores(
    a: Floats, b: Floats, blocks: Sequence[npt.NDArray[np.intp]], drawn: npt.NDArray[np.int64]
) -> Floats:
    seen = np.stack([a[:, block].mean(1) for block in blocks], 1)[:, drawn].mean(2)
    made = np.stack([b[:, :, block].mean(2) for block in blocks], 2)[:, :, drawn].mean(3)
    found: Floats = (seen * made).sum(1) / np.sqrt(np.maximum((made * made).sum(1), 1e-300))
    return found


def scores_of(suspect: Floats, prints: Floats, *, pools: bool) -> Floats:
    """How alike a pattern is to each fingerprint; of rises, taken together over all entries."""
    return likeness(pooled(suspect), pooled(prints)) if pools else likeness(suspect, prints)


def conclude_fingerprint(
    suspect: Floats, prints: Floats, places: Sequence[Site], groups: Floats, seen: Seen, seed: int = 0
) -> Localization:
    """The places by how alike their fingerprints are, the verdict, and whether the second opinion agrees."""
    scores = scores_of(suspect, prints, pools=seen.rising is not None)
    order = np.argsort(-scores, kind="stable")
    best = int(order[0])
    clear = _is_clear(suspect, prints[best], seen)
    if seen.identical or not (seen.leaves_band or seen.alike or clear):
        return Localization("no fault found", (), "fingerprint", checked=len(places), notes=seen.notes)
    if not suspect.any():
        return Localization("undecided", (), "fingerprint", notes=seen.notes, would_decide=_NOTHING)
    margin = float(scores[best] - scores[order[1]]) if len(order) > 1 else float(scores[best])
    confidence = confidence_in(suspect, prints, best, groups, seed, pools=seen.rising is not None)
    opinion = seen.opinion
    is_sure = confidence >= CONFIDENCE or (opinion is not None and opinion.layer == places[best].layer)
    verdict: Verdict = "fault" if clear and is_sure else "undecided"
    return Localization(
        verdict,
        tuple(_suspect(places[i], float(scores[i])) for i in order[:_LISTED]),
        "fingerprint",
        checked=len(places),
        notes=(_said(places[best], margin, confidence), *_second(places[best], opinion), *seen.notes),
        would_decide=_decides(verdict, clear, confidence),
        margin=margin,
        confidence=confidence,
        opinion=opinion,
    )


def _is_clear(suspect: Floats, print_of_best: Floats, seen: Seen) -> bool:
    """Whether the systems are further apart than rounding makes them, at the best place where rises are known."""
    if seen.rising is None:
        return seen.leaves_band
    at = int(pooled(print_of_best).argmax())
    return bool(pooled(suspect)[at, 0] > CLEAR_RISE * seen.rising)


_NOTHING = "The systems differ, but at no border of a layer: compare them with `noisescope compare`."


def _suspect(place: Site, score: float) -> Suspect:
    words = f"noise there leaves a divergence that correlates with this one by {score:.3f}"
    return Suspect(place.layer, place.operator, place.path, score, (Evidence("fingerprint", score, 0, 0, words),))


def place_name(layer: int | None, path: str) -> str:
    """A place, for people."""
    return path if layer is None else f"layer {layer}"


def _said(place: Site, margin: float, confidence: float) -> str:
    return (
        f"{place_name(place.layer, place.path)} leads the next place by {margin:.3f}; it stays first in "
        f"{confidence:.0%} of {_DRAWS} draws of the prompts."
    )


def _second(place: Site, opinion: Opinion | None) -> list[str]:
    if opinion is None:
        return ["Second opinion: the activations show no operator whose own error is above rounding."]
    agrees = opinion.layer == place.layer
    return [f"Second opinion, from the activations: {'agrees' if agrees else 'DISAGREES'}. {opinion.words}"]


def _decides(verdict: Verdict, clear: bool, confidence: float) -> str:
    if verdict != "undecided":
        return ""
    if not clear:
        return (
            "The systems differ by no more than rounding does. On one device with one dtype even that is odd: the "
            "default method, or float64 on both, would decide it."
        )
    return f"The best place is first in only {confidence:.0%} of the draws: more prompts would decide it."
