"""All levels of a diagnosis and its report under the names that users of the verl fork know.

The measuring, the judging and the drawing are other rooms' business; it changes nothing on the model.
"""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from noisescope.core.errors import BadInputError, unknown_name
from noisescope.diagnose.whole import Diagnosis
from noisescope.report.view import View
from noisescope.report.writing import FORMATS, write_file
from noisescope.runs.diagnosing import diagnose_samples, wanted_of
from noisescope.runs.gathering import Gatherer
from noisescope.runs.reporting import view_of_diagnosis
from noisescope.sweep.store import Store
from noisescope.verl.sections import from_text, sections_of, to_document, to_text

# The pages that one file can hold, by the ending of its name.
_PAGES = {".md": "md", ".html": "html", ".pdf": "pdf"}
ENDINGS = (".json", *_PAGES)


class IntegratedDiagnostic:
    """Operators, windows of layers and channels of a model in one diagnosis, and what follows from it.

    `test_data` is what the model is judged on, `calibration_data` what the channels are watched on (the test data, if
    left out): batches of tensors, a data loader of them, texts, items, a `Workload`, or the path of a JSONL file.
    Texts and items need the `tokenizer`. Without a `metric`, batches are judged by agreement with the clean run.
    """

    def __init__(
        self,
        model: nn.Module,
        test_data: Any,
        calibration_data: Any = None,
        *,
        tokenizer: Any | None = None,
        metric: str | None = None,
    ) -> None:
        gatherer = Gatherer(model, tokenizer)
        self.model = model
        self.samples = gatherer.samples("test_data", test_data, metric)
        self.calibration = self.samples
        if calibration_data is not None:
            self.calibration = gatherer.inputs("calibration_data", calibration_data, self.samples)
        self._found: tuple[Diagnosis, View] | None = None

    def run_full_diagnosis(
        self,
        noise_scale: float = 0.05,
        window_size: int = 3,
        outlier_threshold: float = 10.0,
        *,
        out: str | Path | None = None,
        **wanted: Any,
    ) -> Diagnosis:
        """Measure all three levels.

        `wanted` are the other options of `noisescope.diagnose`: seeds, seed, step_size, exhaustive, budget, kind,
        confidence. With `out` readings are kept in a run folder, and the same call goes on from there.
        """
        chosen = {"scale": noise_scale, "window_size": window_size, "outlier_threshold": outlier_threshold}
        twice = sorted(chosen.keys() & wanted.keys())
        if twice:
            raise BadInputError(f"{twice[0]} was given twice; the noise scale is called noise_scale here.")
        asked = wanted_of({**chosen, **wanted})
        with tempfile.TemporaryDirectory(prefix="noisescope-") if out is None else nullcontext(out) as folder:
            diagnosis = diagnose_samples(self.model, self.samples, self.calibration, asked, folder)
            self._found = diagnosis, view_of_diagnosis(Store(folder), diagnosis)
        return diagnosis

    def generate_report(self) -> dict[str, Any]:
        """The sections executive_summary, operator_analysis, layer_analysis, channel_analysis and recommendations."""
        return to_document(sections_of(*self._concluded()))

    def save_report(self, path: str | Path) -> Path:
        """Write the report; the ending says how: .json holds the five sections, .md, .html and .pdf the page."""
        file = Path(path).expanduser()
        ending = file.suffix.lower()
        if ending not in ENDINGS:
            raise unknown_name("ending of a report's file", ending, ENDINGS)
        if ending == ".json":
            return write_file(file, to_text(sections_of(*self._concluded())).encode())
        (content,) = FORMATS[_PAGES[ending]](self._concluded()[1]).values()
        return write_file(file, content)

    @staticmethod
    def load_report(path: str | Path) -> dict[str, Any]:
        """The five sections from a .json that `save_report` wrote; anything else is refused by the place."""
        file = Path(path).expanduser()
        try:
            return to_document(from_text(file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as problem:
            raise BadInputError(f"{file}: {problem}; expected a report that save_report wrote.") from None
        except BadInputError as problem:
            raise BadInputError(f"{file}: {problem}") from None

    def _concluded(self) -> tuple[Diagnosis, View]:
        if self._found is None:
            raise BadInputError("nothing was diagnosed yet; call run_full_diagnosis() first.")
        return self._found
