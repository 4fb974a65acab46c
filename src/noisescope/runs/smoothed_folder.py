"""Keeps a smoothed model: a folder that is a checkpoint as transformers writes it, and a run folder with the report.

The folder appears whole or not at all. What is in its place already is never overwritten.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from noisescope.core.errors import NoisescopeError
from noisescope.core.smoothing import Smoothing
from noisescope.core.version import VERSION
from noisescope.measure.batches import Samples
from noisescope.measure.calling import device_of
from noisescope.model.load import Loaded
from noisescope.model.pretrained import quiet
from noisescope.runs.kept_keys import SMOOTHING
from noisescope.runs.reporting import report
from noisescope.runs.smoothing import SmoothingWanted
from noisescope.sweep.journal import RunFolderError, cannot_write, sync_folder
from noisescope.sweep.store import About, Request, Store


def about(loaded: Loaded, samples: Samples, wanted: SmoothingWanted, asked: str) -> About:
    """What a folder has to agree in to be the answer to the same question."""
    dtype = str(next(loaded.model.parameters()).dtype).removeprefix("torch.")
    settings = (("activations", wanted.activations), ("alpha", "search" if wanted.alpha is None else wanted.alpha))
    versions = (("noisescope", VERSION), ("torch", torch.__version__))
    return About(
        loaded.fingerprint, samples.key, (*settings, ("dtype", dtype)), str(device_of(loaded.model)), versions, asked
    )


def is_free(folder: Path) -> bool:
    """Whether a folder can be made there; an error for what is neither that nor made by noisescope."""
    try:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return True
    except OSError as problem:
        raise cannot_write(folder, problem) from problem
    if not (folder / "about.json").is_file():
        raise RunFolderError(
            f"{folder}: is there already and not from this command. Name an empty folder or a new one."
        )
    return False


def finished(folder: Path, about: About) -> Smoothing | None:
    """What the same command left there; None if there is nothing, and an error if it is the answer to another one."""
    return None if is_free(folder) else Store(folder, about).load_finding(SMOOTHING, Smoothing)


def write(loaded: Loaded, found: Smoothing, folder: Path, about: About, request: Request) -> None:
    """The model as it is now, its tokenizer, and the finding with its report."""
    part = folder.parent / f".{folder.name}-{os.getpid()}-{secrets.token_hex(4)}.part"
    try:
        with Store(part, about) as store:
            store.save_finding(SMOOTHING, found, request)
        report(part)
        _save(loaded.model, loaded.tokenizer, part)
        if folder.exists():
            folder.rmdir()
        part.rename(folder)
        sync_folder(folder.parent)
    except OSError as problem:
        raise cannot_write(folder, problem) from problem
    except NoisescopeError as problem:
        # The name of what is not whole yet says nothing to anybody.
        raise type(problem)(str(problem).replace(str(part), str(folder))) from problem
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _save(model: Any, tokenizer: Any, folder: Path) -> None:
    with quiet():
        try:
            model.save_pretrained(folder)
        except SafetensorError as problem:
            raise OSError(_errno_in(str(problem)), str(problem)) from problem
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


def _errno_in(told: str) -> int:
    """The number of the system's error, which safetensors gives in words alone."""
    found = re.search(r"os error (\d+)", told)
    return int(found[1]) if found else errno.EIO
