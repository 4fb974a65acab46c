"""A view as a versioned JSON document, checked against its declared shape when it is written and when it is read.

It holds no figures of its own. `report.schema.json` beside it says the same shape to other programs.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from noisescope.core.codec import parse, to_plain
from noisescope.core.errors import BadInputError
from noisescope.report.shape import read, schema_of
from noisescope.report.view import View

FORMAT, VERSION = "noisescope report", 1
SCHEMA_FILE = "report.schema.json"


def to_json(view: View) -> str:
    """The document; what it would be read back as has to be the same view."""
    # Written as it is read back: there, a whole number in the place of a float is a float.
    again = from_json(_text(view))
    # In plain form, because a NaN is not equal to itself.
    if to_plain(again) != to_plain(view):
        raise BadInputError("this view does not survive being written; expected values of the declared types only.")
    return _text(again)


def _text(view: View) -> str:
    document = {"format": FORMAT, "version": VERSION, "view": to_plain(view)}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def from_json(text: str) -> View:
    """The view in a document; anything else is refused with the place where it differs."""
    try:
        document = parse(text)
    except ValueError as problem:
        raise BadInputError(f"not JSON ({problem}); expected a report that noisescope wrote.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadInputError(f"no {FORMAT}: expected a JSON object whose format is {FORMAT!r}.")
    if document.get("version") is not VERSION:
        raise BadInputError(
            f"report of version {document.get('version')!r}: this noisescope reads version {VERSION}; make the report "
            "anew from its run folder."
        )
    strange = sorted(set(document) - {"format", "version", "view"})
    if strange or "view" not in document:
        raise BadInputError(f"report {'has no field ' + strange[0] if strange else 'lacks its view'}.")
    return read(View, document["view"])


def schema() -> dict[str, Any]:
    """The JSON Schema of the document, made from the records."""
    whole = schema_of(View)
    definitions = whole.pop("$defs")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{FORMAT}, version {VERSION}",
        "type": "object",
        "properties": {"format": {"const": FORMAT}, "version": {"const": VERSION}, "view": whole},
        "required": ["format", "version", "view"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def schema_text() -> str:
    """The JSON Schema as it is shipped."""
    return files("noisescope.report").joinpath(SCHEMA_FILE).read_text("utf-8")


def write_schema() -> str:
    """The text that the shipped file has to have."""
    return json.dumps(schema(), indent=1) + "\n"
