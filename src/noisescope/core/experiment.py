"""What an experiment of training under noise is made of: its arms, the worlds they are compared in, and the recipe.

It trains nothing and judges nothing. All of it is fixed before the first step, and a run folder holds fast to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.core.records import whole_number

LEVELS = (0.0, 0.05, 0.10)
# Fewer say too little: verdicts below these are undecided.
LEAST_ITEMS, LEAST_SEEDS = 200, 3
NONE, BOTH, FORWARD, BACKWARD, HALF = "none", "both", "forward only", "backward only", "both at 2.5 %"
UNIFORM, ADAPTIVE = "uniform", "adaptive"
MAIN = "main"
# What noise is held against: the gradient of other rows.
SAMPLING = "other rows"


@dataclass(frozen=True)
class Task:
    """What a model learns: generated `problems` or `texts`, or the items of a JSONL file."""

    name: str = "problems"
    metric: str = "accuracy"


@dataclass(frozen=True)
class World:
    """Conditions under which the same arms are compared: one for the theory, and one for each rival explanation.

    `factor` widens the model, `kind` is that of the noise in training, `schedule` multiplies the scale of an arm over
    the run. In a world that shares its seeds every step has the same noise, and the test has it too.
    """

    name: str = MAIN
    asks: str = "The theory as it stands."
    arms: tuple[str, ...] = (NONE, BOTH, FORWARD, BACKWARD)
    factor: int = 1
    task: Task = Task()
    kind: str = "relative_gaussian"
    schedule: str = "constant"
    shares_seeds: bool = False


@dataclass(frozen=True)
class Arm:
    """One way of training, in one world, from one seed: the initial weights, the order of the data and the noise.

    `factors` multiply the scale in layers, by index.
    """

    name: str
    world: World
    seed: int
    factors: tuple[tuple[int, float], ...] = ()

    @property
    def origin(self) -> tuple[object, ...]:
        """All that can change the trained model; what noise would be like does not where there is none."""
        world = self.world
        noise = (world.kind, world.schedule, world.shares_seeds) if self.scale else ()
        return (world.factor, world.task, self.scale, self.phases, noise, self.factors, self.seed)

    @property
    def scale(self) -> float:
        """The scale of the noise in training at full strength; 0 for none."""
        return ARMS[self.name][0]

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases in which training is noisy."""
        return ARMS[self.name][1]


_BOTH_PHASES = ("forward", "backward")
ARMS: Mapping[str, tuple[float, tuple[str, ...]]] = MappingProxyType(
    {
        NONE: (0.0, ()),
        BOTH: (0.05, _BOTH_PHASES),
        FORWARD: (0.05, ("forward",)),
        BACKWARD: (0.05, ("backward",)),
        HALF: (0.025, _BOTH_PHASES),
        UNIFORM: (0.05, _BOTH_PHASES),
        ADAPTIVE: (0.05, _BOTH_PHASES),
    }
)


@dataclass(frozen=True)
class Recipe:
    """How an arm is trained and evaluated. Equal recipes give equal models on one machine, whatever ran before."""

    width: int = 64
    layers: int = 3
    largest: int = 49
    steps: int = 1500
    rows: int = 64
    rate: float = 4e-3
    examples: int = 20_000
    items: int = 500
    between: int = 200
    seeds: int = 3
    draws: int = 2
    levels: tuple[float, ...] = LEVELS

    def __post_init__(self) -> None:
        for name in ("width", "layers", "largest", "steps", "rows", "examples", "items", "between", "seeds", "draws"):
            whole_number(name, getattr(self, name), 1)
        if not 0.0 < self.rate < 1.0:
            raise BadInputError(f"learning rate {self.rate!r}: expected a number between 0 and 1, such as 0.001.")


@dataclass(frozen=True)
class Trained:
    """What became of a training: the loss over its steps, and what was injected in each phase and in each layer.

    `scale` is the mean over the steps of what was asked for; `realised` and `by_layer` are what the noise really was,
    relative to the values it landed on. Of the layers None is left out.
    """

    losses: tuple[tuple[int, float], ...]
    forward: int = 0
    backward: int = 0
    scale: float = 0.0
    realised: tuple[tuple[str, float], ...] = ()
    by_layer: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Disturbance:
    """What noise in one phase was and did on each of some batches; other rows in place of noise are the yardstick.

    `relative` is the noise over the values that it landed on, `error` its RMS: medians over the sites. `deviation` is
    |disturbed - clean| / |clean| of the gradient of all weights, `cosine` that between the two.
    """

    phase: str
    relative: float
    error: float
    deviation: tuple[float, ...]
    cosine: tuple[float, ...]


def worlds_of(name: str, rivals: tuple[str, ...] = (), task: Task | None = None) -> tuple[World, ...]:
    """The worlds of an experiment, with those of the rival explanations that are asked for."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    main = World(arms=EXPERIMENTS[name]) if task is None else World(arms=EXPERIMENTS[name], task=task)
    found = [main]
    for rival in rivals:
        if rival not in RIVALS:
            raise unknown_name("rival explanation", rival, RIVALS)
        if task is not None and rival in ("capacity", "task"):
            raise BadInputError(f"the arms of {rival} need the model and the task made here; leave --model out.")
        found += [world if task is None else replace(world, task=task) for world in RIVALS[rival]]
    return tuple(found)


EXPERIMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"e8": (NONE, BOTH, FORWARD, BACKWARD, HALF), "adaptive": (NONE, UNIFORM, ADAPTIVE)}
)
RIVALS: Mapping[str, tuple[World, ...]] = MappingProxyType(
    {
        "capacity": (World("capacity", "Does it hang on the size of the model? Here it is twice as wide.", factor=2),),
        "task": (
            World(
                "task",
                "Does it hang on exact answers? Here text is continued, and judged by its likelihood.",
                task=Task("texts", "nll"),
            ),
        ),
        "distribution": (
            World(
                "other-noise",
                "Does it hang on training and test having one kind of noise? Here training has noise of one size "
                "for all values of a tensor.",
                kind="rms_gaussian",
            ),
            World(
                "shared-seeds",
                "Does the model learn the noise by heart? Here every step has the same noise, and so has the test.",
                shares_seeds=True,
            ),
        ),
        "schedule": (
            World(
                "schedule",
                "Does it hang on equal noise to the end? Here it decays in training to a fiftieth.",
                schedule="exponential:1:0.02",
            ),
        ),
    }
)
