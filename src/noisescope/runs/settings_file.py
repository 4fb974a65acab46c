"""Reads the settings of a YAML file, each with the file and line where it stands, so that a mistake can be named.

It knows the blocks of a file and which of them only group settings; what a setting means is its reader's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from noisescope.core.errors import BadInputError

DIAGNOSTIC, NOISE = "diagnostic", "noise"
SWITCH = "enabled"
# The blocks, and the parts of them that only group settings with names of their own.
BLOCKS: Mapping[str, tuple[str, ...]] = MappingProxyType({DIAGNOSTIC: ("operator", "layer", "channel"), NOISE: ()})


@dataclass(frozen=True)
class Entry:
    """One setting of a file: its name with dashes, its value, where it stands, and the block that it is in."""

    name: str
    value: Any
    place: str
    block: str = ""


def read(path: Path) -> list[Entry]:
    """Every setting of a file, in its order."""
    import yaml

    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        return list(_entries(path, node)) if node is not None else []
    except BadInputError:
        raise  # which is a ValueError too
    except OSError as problem:
        raise BadInputError(f"{path}: {problem.strerror or problem}; expected a YAML file.") from None
    except yaml.MarkedYAMLError as problem:
        line = f":{problem.problem_mark.line + 1}" if problem.problem_mark else ""
        raise BadInputError(f"{path}{line}: not YAML: {problem.problem or problem.context}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise BadInputError(f"{path}: not YAML: {' '.join(str(problem).split())}.") from None


def _entries(path: Path, node: Any, within: tuple[str, ...] = ()) -> Iterator[Entry]:
    """The settings of a mapping and of the groups in it."""
    for key, value in _pairs(path, node, within):
        name, place = str(key.value).replace("_", "-"), f"{path}:{key.start_mark.line + 1}"
        if _is_group(name, within):
            yield from _entries(path, value, (*within, name))
        else:
            yield Entry(name, _plain(value), place, within[0] if within else "")


def _is_group(name: str, within: tuple[str, ...]) -> bool:
    return name in BLOCKS if not within else len(within) == 1 and name in BLOCKS[within[0]]


def _pairs(path: Path, node: Any, within: tuple[str, ...]) -> list[Any]:
    import yaml

    if not isinstance(node, yaml.MappingNode):
        place = f"{path}:{node.start_mark.line + 1}"
        where = within[-1] if within else "the file"
        raise BadInputError(f"{place}: expected settings such as noise-scale: 0.05 under {where}.")
    return list(node.value)


def _plain(node: Any) -> Any:
    import yaml

    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    finally:
        loader.dispose()
