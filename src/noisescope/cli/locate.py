"""Find the faulty operators of the machine that a model runs on, with or without a second machine to compare with.

Every operator call of a few runs is held against its own algebra on the host. With --method fingerprint the system is
held against a healthy one. With --ground-truth-layer a fault is planted first, and the answer says at which rank it was
found.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noisescope.cli.config import add_config
from noisescope.cli.lines import show
from noisescope.cli.options import (
    DEMO,
    add_model,
    count,
    how_to_load,
    load_subject,
    one_of,
    positive,
    read_data,
    request_of,
    whole,
    write_page,
)
from noisescope.core.errors import BadInputError
from noisescope.core.records import fault
from noisescope.core.vocabulary import FAULT_KINDS, OPERATORS
from noisescope.core.words import many

if TYPE_CHECKING:
    from noisescope.diagnose.localization import Localization
    from noisescope.sweep.store import Store
    from noisescope.sweep.subject import Subject

SUMMARY = "find the faulty operators of the machine that a model runs on"
EXAMPLE = "noisescope locate demo --ground-truth-layer 10 --fault-type dead_zone --fault-magnitude 0.3"
METHODS = ("srdd", "classic", "fingerprint")
FAULT_FOUND = 1
MOST_SHOWN = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """The model, the texts it runs on, the method, and what is planted."""
    add_model(parser)
    parser.add_argument("--data", default=f"{DEMO}texts", metavar="F", help="texts to run on (default: %(default)s)")
    parser.add_argument(
        "--samples", "-n", type=count, default=4, metavar="N", help="texts that are used (default: %(default)s)"
    )
    parser.add_argument(
        "--method", type=one_of("method", METHODS), default="srdd", metavar="M", help=", ".join(METHODS)
    )
    parser.add_argument(
        "--reference", metavar="M", help="of fingerprint: the healthy model, or a capture of it on the same texts"
    )
    parser.add_argument(
        "--repeats", type=count, default=3, metavar="N", help="runs of each text (default: %(default)s)"
    )
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="of the checks (default: %(default)s)")
    group = parser.add_argument_group("validation")
    group.add_argument("--ground-truth-layer", type=whole, metavar="L", help="plant a fault in this layer first")
    group.add_argument(
        "--fault-type",
        type=one_of("fault kind", FAULT_KINDS),
        default="dead_zone",
        metavar="K",
        help=f"{', '.join(FAULT_KINDS)} (default: %(default)s)",
    )
    group.add_argument(
        "--fault-magnitude",
        type=positive,
        default=0.3,
        metavar="M",
        help="how strong it is, in the measure of its kind (default: %(default)s)",
    )
    group.add_argument(
        "--fault-operator",
        type=one_of("operator", OPERATORS),
        metavar="OP",
        help=f"{', '.join(OPERATORS)}; all of them, if left out",
    )
    parser.add_argument("--out", type=Path, metavar="RUN", help="folder to keep the answer in")
    add_config(parser)


def run(asked: argparse.Namespace) -> int:
    """The verdict and the suspects on stdout; 1 if there is a fault."""
    from noisescope.runs.localising import locate

    if (asked.reference is None) == (asked.method == "fingerprint"):
        raise BadInputError("--reference goes with --method fingerprint, and that with it: give both or neither.")
    subject = load_subject(asked)
    batches = _batches(subject, asked)
    reference = _reference(subject, batches, asked)
    with _planted(subject, asked):
        found = locate(
            subject.model,
            batches,
            method=asked.method,
            reference=reference,
            seed=asked.seed,
            repeats=asked.repeats,
        )
    show(_lines(found, asked.ground_truth_layer))
    if asked.out is not None:
        _keep(found, subject, asked)
        write_page(asked.out)
    return FAULT_FOUND if found.verdict == "fault" else 0


def _batches(subject: Subject, asked: argparse.Namespace) -> list[Any]:
    from noisescope.measure.batches import Settings, prepare
    from noisescope.measure.calling import device_of

    workload = read_data(asked.data, asked.samples)
    samples = prepare(workload, subject.tokenizer, "embedding_shift", Settings.of(subject.model))
    return [batch.inputs for batch in samples.batches(device=device_of(subject.model))]


def _reference(subject: Subject, batches: list[Any], asked: argparse.Namespace) -> Any:
    """The healthy model, or the path of a capture; what the model answers before a fault is planted in it."""
    from noisescope.measure.capture_file import is_capture
    from noisescope.runs.confirming import answers_of
    from noisescope.sweep.subject import load

    if asked.method == "srdd" and asked.ground_truth_layer is not None:
        return answers_of(subject.model, batches)
    if asked.reference is None or is_capture(asked.reference):
        return asked.reference
    return load(asked.reference, **how_to_load(asked)).model


def _planted(subject: Subject, asked: argparse.Namespace) -> AbstractContextManager[object]:
    if asked.ground_truth_layer is None:
        return nullcontext()
    from noisescope.sweep.injecting import inject

    corruption = fault(asked.fault_type, asked.fault_magnitude)
    operators = None if asked.fault_operator is None else [asked.fault_operator]
    # A seed far from those of the checks.
    return inject(subject.model, corruption, layers=[asked.ground_truth_layer], operators=operators, seed=0x5EED)


def _keep(found: Localization, subject: Subject, asked: argparse.Namespace) -> None:
    from noisescope.runs.kept_keys import LOCALIZATION

    with _folder(subject, asked) as store:
        store.save_finding(LOCALIZATION, found, request_of(asked, _remark(found, asked)))


def _folder(subject: Subject, asked: argparse.Namespace) -> Store:
    """A folder of its own, or that of another command on the same model: then one report tells of both."""
    from noisescope.sweep.store import ABOUT, About, Store

    if not (asked.out / ABOUT).exists():
        return Store(asked.out, About(subject.fingerprint, asked.data, device=asked.device, asked=asked.command_line))
    store = Store(asked.out)
    if store.about.model != subject.fingerprint:
        raise BadInputError(f"{asked.out}: belongs to another model; name another folder.")
    return store


def _remark(found: Localization, asked: argparse.Namespace) -> str:
    """What was planted, whether it was found, and that the machine itself is not judged."""
    if asked.ground_truth_layer is None:
        return ""
    where = "every operator" if asked.fault_operator is None else asked.fault_operator
    layer, operator = asked.ground_truth_layer, asked.fault_operator
    rank = found.rank_of(layer, operator)
    elsewhere = sum(one.layer != layer or operator not in (None, one.operator) for one in found.suspects)
    return (
        f"Validation: a fault of kind {asked.fault_type} and magnitude {asked.fault_magnitude:g} was planted in "
        f"{where} of layer {layer}. It was {'missed' if rank is None else f'found at rank {rank}'}, with "
        f"{many(elsewhere, 'suspect')} elsewhere. This says how well faults are found, and nothing of the machine."
    )


def _lines(found: Localization, truth: int | None) -> list[str]:
    """The verdict, the worst suspects, what is odd, what could not be checked."""
    lines: list[str] = [found.verdict]
    lines += [f"{rank}. {suspect}" for rank, suspect in enumerate(found.suspects[:MOST_SHOWN], start=1)]
    if len(found.suspects) > MOST_SHOWN:
        lines.append(f"and {len(found.suspects) - MOST_SHOWN} more suspects")
    if truth is not None:
        rank_found = found.rank_of(truth)
        place = "is not among the suspects" if rank_found is None else f"was found at rank {rank_found}"
        lines.append(f"layer {truth}, where the fault was planted, {place}")
    lines += [] if found.confirmation is None else [str(found.confirmation)]
    lines += found.notes
    if found.unchecked:
        lines.append(f"not checked: {', '.join(found.unchecked)}")
    return [*lines, found.would_decide] if found.would_decide else lines
