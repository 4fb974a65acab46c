"""What stands in the way of believing a diagnosis: a control that differs, gaps, outputs that are not finite.

It judges no operator and no layer.
"""

from __future__ import annotations

from collections.abc import Iterable

from noisescope.core.records import Finding
from noisescope.diagnose.harm import yardstick
from noisescope.diagnose.ledger import Answer, Control
from noisescope.diagnose.setting import Setting


def control_findings(control: Control) -> tuple[Finding, ...]:
    """An error where noise of strength 0 changed a value, or where that could not be found out."""
    if control.holds:
        return ()
    if control.holds is None:
        seen = control.gaps[0] if control.gaps else "missing"
        statement = f"The baseline or the zero-noise control could not be measured ({seen}); nothing was judged."
        return (Finding(statement, "error", (), (), decided=False),)
    statement = (
        f"Noise of strength 0 changed the result by up to {control.largest:g} on {control.samples} samples. "
        "The measurement cannot be trusted, and nothing was judged: the model answers the same question differently. "
        "Look for dropout left on, a sampling decoder, or kernels that are not deterministic."
    )
    figures = (("largest difference", control.largest), ("samples", float(control.samples)))
    return (Finding(statement, "error", figures, (), decided=False),)


def nonfinite_findings(answers: Iterable[Answer]) -> tuple[Finding, ...]:
    """How many outputs were not finite, and where most of them were."""
    hit = sorted((answer for answer in answers if answer.nonfinite), key=lambda answer: -answer.nonfinite)
    if not hit:
        return ()
    total = sum(answer.nonfinite for answer in hit)
    statement = (
        f"{total} outputs were NaN or infinite under noise, most of them with {hit[0].name} ({hit[0].nonfinite}); "
        "each counts as the worst value its metric has."
    )
    figures = tuple((answer.name, float(answer.nonfinite)) for answer in hit)
    return (Finding(statement, "warning", figures, hit[0].trials),)


def unit_findings(setting: Setting) -> tuple[Finding, ...]:
    """A note where the bands of degradation do not apply."""
    if yardstick(setting).is_share:
        return ()
    statement = (
        f"{setting.metric} is 0 without noise: harm is in its own unit, and the bands of degradation do not apply to "
        "it. For verdicts take accuracy, nll, perplexity or top1_agreement."
    )
    return (Finding(statement, "note"),)
