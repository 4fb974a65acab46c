"""Make fault tests from a diagnosis, and execute them on a model.

Critical operators get flipped bits, avalanche windows get channels that are stuck at zero for one generation step,
outlier channels get corrupted values. Where nothing is critical the worst there is gets the case, and the output says
so. With --run every case passes or fails by what it may cost, by how soon generation recovers, and by whether locate
finds it; --bit-curve measures what a flip of each bit costs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from noisescope.cli.lines import remark, show
from noisescope.cli.options import add_loading, count, how_to_load, one_of, positive, read_data, whole, write_page
from noisescope.core.errors import BadInputError

if TYPE_CHECKING:
    from noisescope.diagnose.bit_curve import BitCurve
    from noisescope.diagnose.fault_tests import FaultPlan, FaultTests
    from noisescope.runs.ordering import Order
    from noisescope.sweep.store import Request

SUMMARY = "make fault tests from a diagnosis, and execute them"
EXAMPLE = "noisescope faults runs/first --csv fault-tests.csv"
DTYPES = ("float32", "bfloat16", "float16")
CASES_FILE = "fault-tests.json"
LIMIT_BROKEN, NOT_RUN = 1, 2
# A continuous metric says more of few samples than hits and misses do.
METRIC, SAMPLES, SEEDS = "nll", 50, 3


def arguments(parser: argparse.ArgumentParser) -> None:
    """The cases, where they are written, and on what they are executed."""
    parser.add_argument(
        "source", type=Path, metavar="RUN", help="run folder of a diagnosis, or a JSON file of cases, edited or not"
    )
    parser.add_argument("--json", type=Path, metavar="F", help=f"write the cases here (default: {CASES_FILE} in RUN)")
    parser.add_argument("--csv", type=Path, metavar="F", help="write a table of the cases, and of what came of them")
    group = parser.add_argument_group("executing")
    group.add_argument(
        "--run",
        nargs="?",
        const="",
        dest="target",
        metavar="MODEL",
        help="execute the cases on it (default: that of RUN)",
    )
    group.add_argument("--strict", action="store_true", help="fail unless every case is shown to pass")
    group.add_argument("--data", metavar="F", help="as of diagnose (default: the data of RUN)")
    group.add_argument(
        "--metric", default=METRIC, metavar="NAME", help="what a loss is measured in (default: %(default)s)"
    )
    group.add_argument(
        "--samples", "-n", type=count, default=SAMPLES, metavar="N", help="samples of the data (default: %(default)s)"
    )
    group.add_argument(
        "--seeds", type=count, default=SEEDS, metavar="N", help="draws of each fault (default: %(default)s)"
    )
    group.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="where the draws begin (default: %(default)s)"
    )
    group.add_argument("--workers", type=count, default=1, metavar="N", help="processes (default: %(default)s)")
    group.add_argument("--out", type=Path, metavar="RUN", help="run folder, where RUN is a file of cases")
    _add_curve(parser.add_argument_group("bit-sensitivity curve"))
    add_loading(parser)


def _add_curve(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--bit-curve", nargs="?", const="", metavar="OP,...", help="flip every bit, in these operators or in all"
    )
    group.add_argument(
        "--bit-dtypes", type=dtypes, metavar="T,...", help=f"{', '.join(DTYPES)} (default: as the model is loaded)"
    )
    group.add_argument(
        "--bit-rate", type=positive, default=1e-4, metavar="R", help="share of the outputs (default: %(default)g)"
    )


def dtypes(text: str) -> tuple[str, ...]:
    """Comma-separated number formats."""
    return tuple(one_of("number format", DTYPES)(part) for part in text.split(","))


def run(asked: argparse.Namespace) -> int:
    """The cases on stdout, or what came of them; files where they were asked for, and a page in the run folder."""
    plan, request = _cases(asked)
    is_executing = asked.target is not None or asked.bit_curve is not None
    folder = _folder(asked, is_executing=is_executing)
    tests = None
    if is_executing and folder is not None:
        tests = _executed(asked, plan, request, folder)
    else:
        _say_plan(asked, plan, request, folder)
    _write(asked, plan, tests, folder)
    if folder is not None:
        write_page(folder)
    return 0 if tests is None else _status(tests.verdict, strict=asked.strict)


def _status(verdict: str, *, strict: bool) -> int:
    if verdict == "error":
        return NOT_RUN
    return LIMIT_BROKEN if verdict == "fail" or (strict and verdict == "undecided") else 0


def _cases(asked: argparse.Namespace) -> tuple[FaultPlan, Request]:
    """The cases, from a diagnosis or from a file, and what is known of the model and the data."""
    from noisescope.diagnose.whole import Diagnosis
    from noisescope.prescribe.fault_cases import fault_plan
    from noisescope.prescribe.fault_files import read_plan
    from noisescope.runs.kept_keys import DIAGNOSIS
    from noisescope.sweep.store import Request, Store

    if not asked.source.is_dir():
        plan = read_plan(asked.source)
        return plan, Request(asked.command_line, asked.target or plan.model, asked.data or "")
    if asked.out is not None:
        raise BadInputError(f"--out with the run folder {asked.source}: the tests are kept there; leave --out out.")
    store = Store(asked.source)
    found = store.load_finding(DIAGNOSIS, Diagnosis)
    if found is None:
        raise BadInputError(f"{asked.source}: holds no diagnosis to make tests from; run noisescope diagnose there.")
    known = store.request_of(DIAGNOSIS) or Request()
    request = Request(asked.command_line, asked.target or known.model, asked.data or known.workload)
    return fault_plan(found, known.model or store.about.model, store.about.model), request


def _folder(asked: argparse.Namespace, *, is_executing: bool) -> Path | None:
    """The run folder: the one that was given, else one for a file of cases, else none."""
    if asked.source.is_dir():
        return Path(asked.source)
    return (asked.out or Path("runs") / f"faults-{asked.source.stem}") if is_executing else None


def _say_plan(asked: argparse.Namespace, plan: FaultPlan, request: Request, folder: Path | None) -> None:
    from noisescope.diagnose.fault_lines import plan_lines
    from noisescope.runs.kept_keys import FAULT_PLAN
    from noisescope.sweep.store import Store

    show(plan_lines(plan))
    if folder is not None:
        Store(folder).save_finding(FAULT_PLAN, plan, request)
    remark(f"execute them: noisescope faults {asked.source} --run MODEL")


def _write(asked: argparse.Namespace, plan: FaultPlan, tests: FaultTests | None, folder: Path | None) -> None:
    from noisescope.prescribe.fault_files import plan_text, table_text
    from noisescope.report.writing import write_file

    json = asked.json or (folder / CASES_FILE if asked.source.is_dir() and folder is not None else None)
    for path, text in ((json, plan_text(plan)), (asked.csv, table_text(plan, tests))):
        if path is not None:
            show([str(write_file(path, text.encode()))])


def _executed(asked: argparse.Namespace, plan: FaultPlan, request: Request, folder: Path) -> FaultTests | None:
    """What came of the cases if they were to be run; curves of bits if those were asked for."""
    order = _order(asked, request, folder)
    tests = None if asked.target is None else _tested(asked, order, plan, request)
    if asked.bit_curve is not None:
        _measure_curves(asked, order, request)
    return tests


def _order(asked: argparse.Namespace, request: Request, folder: Path) -> Order:
    from noisescope.runs.ordering import Order

    for option, held in (("--run", request.model), ("--data", request.workload)):
        if not held:
            raise BadInputError(f"{option} is missing: {asked.source} does not say with what it was made.")
    workload = read_data(request.workload, asked.samples)
    load = tuple(how_to_load(asked).items())
    return Order(
        request.model, load, workload, folder, metric=asked.metric, workers=asked.workers, asked=asked.command_line
    )


def _tested(asked: argparse.Namespace, order: Order, plan: FaultPlan, request: Request) -> FaultTests:
    from noisescope.diagnose.fault_lines import outcome_lines
    from noisescope.runs.fault_testing import fault_desk, run_fault_tests, setting_for
    from noisescope.runs.kept_keys import FAULTS

    with fault_desk(order, sys.stderr) as desk:
        tests = run_fault_tests(desk, plan, setting_for(desk, asked.seeds, asked.seed))
        desk.store.save_finding(FAULTS, tests, request)
    show(outcome_lines(tests))
    return tests


def _measure_curves(asked: argparse.Namespace, order: Order, request: Request) -> None:
    """A number format that the model is only loaded in for this has a folder of its own within the run folder."""
    from noisescope.core.records import operator_names
    from noisescope.diagnose.fault_lines import curve_lines
    from noisescope.runs.fault_testing import fault_desk, keep_curves, loaded_in, measured_curves, setting_for

    operators = operator_names(asked.bit_curve.split(",")) if asked.bit_curve else None
    orders = [order] if asked.bit_dtypes is None else [loaded_in(order, dtype) for dtype in asked.bit_dtypes]
    curves: list[BitCurve] = []
    for one in orders:
        with fault_desk(one, sys.stderr) as desk:
            curves += measured_curves(desk, operators, setting_for(desk, asked.seeds, asked.seed), asked.bit_rate)
    show(curve_lines(curves))
    keep_curves(order.out, curves, request)
