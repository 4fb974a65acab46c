"""The options that several commands share, and the objects that they ask for.

It has no option of one command alone.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from noisescope.cli.config import add_config
from noisescope.cli.lines import show
from noisescope.core.errors import BadInputError, unknown_name

if TYPE_CHECKING:
    from noisescope.measure.workload import Workload
    from noisescope.runs.ordering import Order
    from noisescope.sweep.executors.ray import Cluster
    from noisescope.sweep.store import Request, Store
    from noisescope.sweep.subject import Subject

DEVICES = ("cpu", "cuda", "npu", "mps", "xpu")
N = TypeVar("N", int, float)
DEMO = "demo:"
# What Ray calls the devices that it hands out one by one.
_USUAL_ROOM = {"cuda": (("CPU", 1.0), ("GPU", 1.0)), "npu": (("CPU", 1.0), ("NPU", 1.0))}


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL and how it is loaded."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="Hugging Face folder or name, GGUF file, checkpoint with --config-from, or demo (SmolLM2-135M-Instruct)",
    )
    add_loading(parser)


def add_loading(parser: argparse.ArgumentParser) -> None:
    """How a model is loaded."""
    group = parser.add_argument_group("loading")
    group.add_argument(
        "--device",
        default="cpu",
        metavar="D",
        help=f"{', '.join(DEVICES)}, or one by number: cuda:1; for a model that is too large for one: auto, balanced, "
        "sequential, or a JSON file from module paths to devices",
    )
    group.add_argument("--dtype", metavar="T", help="float32, bfloat16 or float16; as the weights are, if left out")
    group.add_argument(
        "--config-from", metavar="M", help="folder, config.json or name for a checkpoint of bare weights"
    )
    group.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")


def load_subject(asked: argparse.Namespace) -> Subject:
    """The model that was asked for, ready and checked."""
    from noisescope.sweep.subject import load

    return load(asked.model, **how_to_load(asked))


def how_to_load(asked: argparse.Namespace) -> dict[str, Any]:
    """What `load` is told besides the source."""
    names = ("device", "dtype", "config_from", "trust_remote_code")
    return {name: getattr(asked, name) for name in names}


def add_data(parser: argparse.ArgumentParser, samples: int) -> None:
    """The workload, its size and its metric."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data",
        default=f"{DEMO}choices",
        metavar="F",
        help="JSONL file; demo:choices, demo:questions or demo:texts; task:NAME of lm-evaluation-harness "
        "(default: %(default)s)",
    )
    group.add_argument("--metric", metavar="NAME", help="accuracy where the items allow it, else nll, if left out")
    group.add_argument(
        "--samples", "-n", type=count, default=samples, metavar="N", help="items that are used (default: %(default)s)"
    )


def read_data(text: str, samples: int | None) -> Workload:
    """The workload that `--data` names."""
    from noisescope.runs.gathering import workload_named

    return workload_named(text, samples)


def add_run(parser: argparse.ArgumentParser) -> None:
    """The run folder and who does the work."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--out", type=Path, metavar="RUN", help="run folder; the same command goes on there (default: runs/NAME)"
    )
    group.add_argument(
        "--seeds", type=count, default=3, metavar="N", help="noise draws per item (default: %(default)s)"
    )
    group.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="where the noise begins (default: %(default)s)"
    )
    group.add_argument(
        "--workers",
        type=count,
        default=1,
        metavar="N",
        help="processes, one copy of the model each (default: %(default)s)",
    )
    group.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="work on a Ray cluster in place of --workers: the one at RAY_ADDRESS or on this machine, else a new one",
    )
    group.add_argument(
        "--ray-worker",
        type=resources,
        metavar="NAME=N,...",
        help="what each Ray worker takes, such as CPU=4 or NPU=1,CPU=2 (default: CPU=1, and 1 of the --device)",
    )
    add_config(parser)


def folder_of(asked: argparse.Namespace) -> Path:
    """The run folder: the one that was asked for, else one by the names of the command and the model."""
    command = asked.run.__module__.rpartition(".")[2]
    return asked.out or Path("runs") / f"{command}-{re.sub(r'[^A-Za-z0-9.]+', '-', Path(asked.model).name)}"


def order_of(asked: argparse.Namespace) -> Order:
    """Everything that the options of a run name."""
    from noisescope.runs.ordering import Order

    calibration = getattr(asked, "calibration", None)
    return Order(
        source=asked.model,
        load_options=tuple(how_to_load(asked).items()),
        workload=read_data(asked.data, asked.samples),
        out=folder_of(asked),
        calibration=None if calibration is None else read_data(calibration, None),
        metric=asked.metric,
        workers=asked.workers,
        cluster=cluster_of(asked),
        asked=asked.command_line,
    )


def cluster_of(asked: argparse.Namespace) -> Cluster | None:
    """The Ray cluster that is to do the work, if one is to."""
    from noisescope.sweep.executors.ray import Cluster

    if asked.ray is None:
        if asked.ray_worker is not None:
            raise BadInputError("--ray-worker without --ray: it says what a worker on a Ray cluster takes.")
        return None
    if asked.workers != 1:
        raise BadInputError(
            f"--workers {asked.workers} with --ray: on a Ray cluster there are as many workers as fit; leave one out."
        )
    kind = asked.device.partition(":")[0]
    if asked.ray_worker is None and kind not in DEVICES:
        raise BadInputError(
            f"--device {asked.device} with --ray: say what each worker takes, such as --ray-worker GPU=2,CPU=2."
        )
    return Cluster(asked.ray, asked.ray_worker or _USUAL_ROOM.get(kind, (("CPU", 1.0),)))


def request_of(asked: argparse.Namespace, remark: str = "") -> Request:
    """What was asked, for the reader of a report."""
    from noisescope.sweep.store import Request

    return Request(asked.command_line, asked.model, asked.data, remark)


def asked_in(store: Store, asked: argparse.Namespace) -> Request:
    """The model and the data: those that are named, else those of what was asked in a run folder first."""
    from noisescope.runs.kept_keys import DIAGNOSIS, LOCALIZATION, PRECISION, ROBUSTNESS
    from noisescope.sweep.store import Request

    earlier = [store.request_of(name) for name in (DIAGNOSIS, ROBUSTNESS, LOCALIZATION, PRECISION)]
    known = next((one for one in earlier if one is not None), Request())
    model, data = asked.model or known.model, asked.data or known.workload
    for option, held in (("--model", model), ("--data", data)):
        if not held:
            raise BadInputError(f"{option} is missing: {asked.run_folder} does not say what it was made with.")
    return Request(asked.command_line, model, data)


def write_page(folder: Path, formats: Collection[str] = ("html",)) -> None:
    """The report of a run folder, and the paths of its files on stdout."""
    from noisescope.runs.reporting import report

    show(f"report: {path}" for path in report(folder, formats))


def count(text: str) -> int:
    """A whole number of at least 1."""
    return _number(text, int, "a whole number of at least 1", lambda n: n >= 1)


def whole(text: str) -> int:
    """A whole number."""
    return _number(text, int, "a whole number", lambda _: True)


def positive(text: str) -> float:
    """A finite number above 0."""
    return _number(text, float, "a finite number above 0", lambda x: 0 < x < math.inf)


def _number(text: str, kind: Callable[[str], N], expected: str, fits: Callable[[N], bool]) -> N:
    try:
        value = kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}.") from None
    if not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}.")
    return value


def levels(text: str) -> tuple[float, ...]:
    """Comma-separated noise levels that rise from 0 or above."""
    found = tuple(
        _number(part, float, "numbers such as 0,0.05,0.10", lambda x: 0 <= x < math.inf) for part in text.split(",")
    )
    if sorted(set(found)) != list(found):
        raise argparse.ArgumentTypeError(f"{text!r}: expected levels that rise, such as 0,0.05,0.10.")
    return found


def resources(text: str) -> tuple[tuple[str, float], ...]:
    """Amounts of resources of a Ray cluster by name."""
    found = {}
    for part in text.split(","):
        name, _, amount = part.partition("=")
        if not name.strip() or name.strip() in found:
            raise argparse.ArgumentTypeError(f"{text!r}: expected each name once, such as NPU=1,CPU=2.")
        found[name.strip()] = _number(amount, float, "amounts such as NPU=1,CPU=2", lambda x: 0 < x < math.inf)
    return tuple(sorted(found.items()))


def one_of(what: str, names: Collection[str]) -> Callable[[str], str]:
    """A reader of one name out of a closed list, which finds the nearest match of a wrong one."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(str(unknown_name(what, text, names)))
        return text

    return read


def require(held: object, option: str, why: str) -> None:
    """Refuse to go on without an option."""
    if held is None:
        raise BadInputError(f"{option} is missing: {why}")
