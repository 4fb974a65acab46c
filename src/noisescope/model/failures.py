"""Turns what goes wrong inside the loading libraries into one line that says what to do. It reads no file itself."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from noisescope.core.errors import LoadError, NoisescopeError

MEANINGS = (
    (
        r"GLOBAL (?P<named>\S+)",
        "a pickle that would run code when read ({named}); expected plain tensors: save the state_dict again.",
    ),
    (r"SafetensorError", "a .safetensors file is damaged or cut short ({first}); copy or download it again."),
    (r"trust_remote_code", "needs code of its own; pass trust_remote_code=True (--trust-remote-code) if you trust it."),
    (r"not recognize this arch", "its model type is unknown to the transformers installed here; upgrade transformers."),
    (r"connect to|ffline mode", "the hub cannot be reached and the local cache lacks it; give a folder or a file."),
    (
        r"PytorchStreamReader|EOFError|UnpicklingError|pickle protocol",
        "damaged, cut short, or no checkpoint at all ({first}); copy or save it again.",
    ),
)


@contextlib.contextmanager
def one_line(source: str) -> Iterator[None]:
    """Any failure inside as a LoadError of one line; noisescope's own errors as they are."""
    try:
        yield
    except NoisescopeError:
        raise
    except Exception as problem:  # the libraries inside raise nearly every class there is
        raise LoadError(f"{source}: {meaning(problem)}") from problem


def meaning(problem: Exception) -> str:
    """What a failure in a library means to the person who named the file."""
    text = f"{type(problem).__name__}: {problem}"
    first = first_line(problem)
    for pattern, said in MEANINGS:
        if found := re.search(pattern, text):
            return said.format(first=first, **found.groupdict())
    return f"cannot be read ({first}); expected a whole Hugging Face folder, GGUF file or checkpoint."


def first_line(problem: Exception) -> str:
    """The first line of an error's text that says anything."""
    lines = (line.strip().rstrip(".:") for line in str(problem).splitlines())
    return next(filter(None, lines), type(problem).__name__)
