"""An experiment of training under noise as a report: the pre-test, then verdicts and curves for every world.

It judges nothing and uses the words of the records.
"""

from __future__ import annotations

from noisescope.core.experiment import MAIN, SAMPLING
from noisescope.core.words import many
from noisescope.diagnose.experiment import ArmResult, AtLevel, Experiment, WorldResult
from noisescope.report.judged import Unit, figure_of, score_unit
from noisescope.report.origin import Origin, reproduce_section
from noisescope.report.view import (
    Block,
    Column,
    Curve,
    Curves,
    Fact,
    Facts,
    Figure,
    Level,
    Note,
    Point,
    Row,
    Section,
    Severity,
    Table,
    View,
)
from noisescope.report.wording import number

_LEVELS: dict[str, Level] = {"verified": "low", "falsified": "moderate", "undecided": "undecided"}
_TITLES = {
    "e8": "Gradient noise against activation noise (E8)",
    "adaptive": "Adaptive noise against one scale of equal mean",
}
# What was published for reinforcement learning of models of 1.5 and 7 billion parameters on GSM8K, without intervals.
PUBLISHED = (
    ("both, 1.5B", "78 %", "64 %"),
    ("forward only, 1.5B", "69.4 %", "70.5 % at its peak"),
    ("a 7B model", "not given", "0 % loss"),
    ("a 1.5B model", "not given", "14 points less"),
)


def experiment_view(found: Experiment, origin: Origin) -> View:
    """The report of an experiment."""
    return View(
        title=_TITLES.get(found.name, found.name),
        subject=", ".join(part for part in (found.subject, origin.device) if part),
        verdict=_verdict(found.worlds[0]),
        severity=_overall(found.worlds[0]),
        sections=(
            _pretest(found),
            *(_world(found, world) for world in found.worlds),
            *((_published(),) if found.name == "e8" else ()),
            *((_factors(found),) if found.factors else ()),
            reproduce_section(origin),
        ),
        facts=_head(found),
        made_by=origin.made_by,
    )


def _verdict(world: WorldResult) -> str:
    """Every claim with its verdict, and why nothing could be judged."""
    said = [f"{one.claim.name.capitalize()}: {one.verdict}." for one in world.claims]
    reasons = dict.fromkeys(f"{one.why[:1].upper()}{one.why[1:]}." for one in world.claims if one.why)
    return " ".join([*said, *reasons])


def _overall(world: WorldResult) -> Severity:
    """All claims together hold if each does."""
    verdicts = [one.verdict for one in world.claims]
    word = next((word for word in ("falsified", "undecided") if word in verdicts), "verified")
    return _severity(word)


def _severity(word: str) -> Severity:
    return Severity(word, _LEVELS[word])


def _head(found: Experiment) -> tuple[Fact, ...]:
    recipe = found.recipe
    return (
        Fact("items of the test", Figure(float(recipe.items)), "count"),
        Fact("training seeds", Figure(float(recipe.seeds)), "count"),
        Fact("noise draws per item", Figure(float(recipe.draws)), "count"),
        Fact("steps of training", f"{recipe.steps:,} of {many(recipe.rows, 'row')}"),
        Fact("commonest answer gets", Figure(found.guessed), "percent"),
    )


def _pretest(found: Experiment) -> Section:
    columns = (
        Column("model"),
        Column("disturbed"),
        Column("noise over values", "figure", "percent"),
        Column("size of noise", "figure"),
        Column("gradient moved by", "figure", "percent"),
        Column("cosine to clean gradient", "figure"),
    )
    rows = tuple(
        Row(
            (
                one.state,
                {"forward": "activations", "backward": "gradients"}.get(one.phase, one.phase),
                None if one.phase == SAMPLING else Figure(one.relative),
                None if one.phase == SAMPLING else Figure(one.error),
                figure_of(one.deviation),
                figure_of(one.cosine),
            )
        )
        for one in found.pretest
    )
    table = Table(
        "Noise of 5 % in activations and in gradients",
        columns,
        rows,
        "Size of noise is its RMS, the median over sites. Other rows: the gradient of another batch, for comparison. "
        "The model is that of the first seed, before and after training without noise.",
    )
    return Section(
        "pretest",
        "Pre-test: how large is each noise?",
        (table, Note(_larger(found))),
        "Before anything is compared: how large noise of one relative strength is in activations and in gradients, and "
        "what it does to the gradient of the loss.",
    )


def _larger(found: Experiment) -> str:
    """How many times larger one noise is than the other, in each state."""
    said = []
    for state in dict.fromkeys(one.state for one in found.pretest):
        of_state = {one.phase: one for one in found.pretest if one.state == state}
        forward, backward = of_state["forward"], of_state["backward"]
        said.append(
            f"{state}, noise in activations is {number(forward.error / backward.error)} times as large as that in "
            f"gradients, and moves the gradient of the loss by {number(forward.deviation.estimate, 'percent')} of its "
            f"length, against {number(backward.deviation.estimate, 'percent')}"
        )
    text = "; ".join(said)
    return f"{text[:1].upper()}{text[1:]}."


def _world(found: Experiment, world: WorldResult) -> Section:
    unit = score_unit(world.world.task.metric)
    blocks: list[Block] = [_claims(world), *(Note(note, "moderate") for note in world.notes)]
    blocks += [
        _scores(world, unit),
        _kept(world),
        _arms(world, unit),
        _seeds(world, unit),
        _losses(world),
        _landed(world),
    ]
    heading = "Verdicts" if world.world.name == MAIN else f"Rival explanation: {world.world.name}"
    intro = (
        f"{world.world.asks} Intervals hold for other items and for other training seeds "
        f"({found.recipe.items:,} items, {many(found.recipe.seeds, 'seed')})."
    )
    return Section(f"world-{world.world.name}", heading, tuple(blocks), intro)


def _claims(world: WorldResult) -> Table:
    columns = (
        Column("claim"),
        Column("verdict", "severity"),
        Column("difference", "figure", "percent"),
        Column("limit"),
        Column("p holds", "figure"),
        Column("p fails", "figure"),
        Column("p differs", "figure"),
    )
    rows = tuple(
        Row(
            (
                one.claim.says,
                _severity(one.verdict),
                figure_of(one.difference),
                f"{one.claim.side} {number(one.claim.limit, 'percent')}",
                *(None if p is None else Figure(p) for p in (one.p_verified, one.p_falsified, one.p_other)),
            )
        )
        for one in world.claims
    )
    caption = (
        "Differences are points of what is kept, or of the score. A claim is verified where the p-value of its holding "
        "is below 0.05, falsified where that of its failing is; the last says whether the arms differ at all. "
    )
    why = next((one.why for one in world.claims if one.why), "")
    return Table("Claims", columns, rows, f"{caption}{f'Nothing is judged: {why}.' if why else ''}")


def _scores(world: WorldResult, unit: Unit) -> Curves:
    return Curves(
        title=f"{unit.name.capitalize()} over the scale of noise in the test",
        curves=tuple(Curve(arm.name, _points(arm, "score")) for arm in world.arms),
        x_name="noise scale",
        measure=unit.name,
        x_form="percent",
        form=unit.form,
        unit=unit.unit,
    )


def _kept(world: WorldResult) -> Curves:
    return Curves(
        title="What is kept of the score without noise",
        curves=tuple(Curve(arm.name, _points(arm, "kept")) for arm in world.arms),
        x_name="noise scale",
        measure="kept",
        x_form="percent",
        form="percent",
    )


def _points(arm: ArmResult, what: str) -> tuple[Point, ...]:
    figures = [(at.level, figure_of(at.score if what == "score" else at.kept)) for at in arm.levels]
    return tuple(Point(level, figure) for level, figure in figures if figure is not None)


def _arms(world: WorldResult, unit: Unit) -> Table:
    columns = (
        Column("trained with noise"),
        Column("noise in the test", "figure", "percent"),
        Column(unit.name, "figure", unit.form, unit.unit),
        Column("kept", "figure", "percent"),
        Column("injections", "figure", "count"),
    )
    rows = tuple(
        Row((arm.name, Figure(at.level), figure_of(at.score), figure_of(at.kept), Figure(float(at.injections))))
        for arm in world.arms
        for at in arm.levels
    )
    return Table("Scores", columns, rows)


def _seeds(world: WorldResult, unit: Unit) -> Table:
    count = len(world.arms[0].levels[0].by_seed)
    columns = (
        Column("trained with noise"),
        Column("noise in the test", "figure", "percent"),
        *(Column(f"seed {seed}", "figure", unit.form, unit.unit) for seed in range(count)),
    )
    return Table(
        "Scores of each training seed", columns, tuple(_seed(arm, at) for arm in world.arms for at in arm.levels)
    )


def _seed(arm: ArmResult, at: AtLevel) -> Row:
    return Row((arm.name, Figure(at.level), *(Figure(score) for score in at.by_seed)))


def _losses(world: WorldResult) -> Curves:
    return Curves(
        title="Loss in training",
        curves=tuple(
            Curve(arm.name, tuple(Point(float(step), Figure(loss)) for step, loss in arm.losses)) for arm in world.arms
        ),
        x_name="step",
        measure="loss",
        x_form="count",
        unit="nats",
        spacing="log",
        caption="With the noise of the arm; the mean over the training seeds.",
    )


def _landed(world: WorldResult) -> Table:
    columns = (
        Column("trained with noise"),
        Column("injections forward", "figure", "count"),
        Column("injections backward", "figure", "count"),
        Column("realised in activations", "figure", "percent"),
        Column("realised in gradients", "figure", "percent"),
    )
    rows = tuple(
        Row(
            (
                arm.name,
                Figure(float(arm.forward)),
                Figure(float(arm.backward)),
                *(
                    None if phase not in dict(arm.realised) else Figure(dict(arm.realised)[phase])
                    for phase in ("forward", "backward")
                ),
            )
        )
        for arm in world.arms
    )
    caption = "Sums over all steps and seeds. An arm whose noise never landed, in training or in the test, is an error."
    return Table("Noise that really landed in training", columns, rows, caption)


def _published() -> Section:
    columns = (Column("arm"), Column("without noise"), Column("at 5 % noise"))
    table = Table("Published for GSM8K", columns, tuple(Row(cells) for cells in PUBLISHED))
    intro = (
        "Figures that were published for reinforcement learning of models a thousand times larger, one training run "
        "each and without intervals. They are set beside the measured ones, not compared with them."
    )
    return Section("published", "Published figures", (table,), intro)


def _factors(found: Experiment) -> Section:
    layers = sorted({layer for factors in found.factors for layer, _ in factors})
    columns = (Column("training seed"), *(Column(f"layer {layer}", "figure", "times") for layer in layers))
    rows = tuple(
        Row((str(seed), *(Figure(dict(factors)[layer]) for layer in layers)))
        for seed, factors in enumerate(found.factors)
    )
    same = sum(len({factor for _, factor in factors}) == 1 for factors in found.factors)
    said = f"The profile tells no layer from another in {many(same, 'seed')}: there both arms had the same scales."
    blocks: list[Block] = [Table("Factors on the scale of noise in training", columns, rows, "Their mean is 1.")]
    if same:
        blocks.append(Note(said, "moderate"))
    blocks.append(Facts("Rule", (Fact("degradation > 15 %, 5 to 15 %, < 5 %", "0.5, 1 and 2, divided by their mean"),)))
    intro = "From what noise of 5 % in each layer alone costs the arm trained without noise, on items held back for it."
    return Section("factors", "Adaptive scales", tuple(blocks), intro)
