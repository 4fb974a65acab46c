"""Several views of one model as one: the worst verdict first, all that is to be done by urgency, all sections once.

It adds no figure and no judgement to what the views say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from noisescope.report.origin import AGAIN
from noisescope.report.view import Fact, Level, Reproduce, Section, View

# What is not decided may yet be bad.
_URGENCY: Sequence[Level] = ("critical", "high", "moderate", "undecided", "low", "none")
# Sections that come after all others, in this order.
_LAST = ("checked", "findings-list", "trust", "gaps", AGAIN)


def joined_view(views: Mapping[str, View], title: str) -> View:
    """One report of views by their names; a single view stays as it is. Of equally urgent ones the earlier is first."""
    every = list(views.values())
    if len(every) == 1:
        return every[0]
    by_urgency = sorted(views.items(), key=lambda named: _URGENCY.index(named[1].severity.level))
    actions = [action for view in every for action in view.actions]
    return View(
        title=title,
        subject=", ".join(dict.fromkeys(part for view in every for part in view.subject.split(", ") if part)),
        verdict=" ".join(_ended(f"{name}: {view.verdict}") for name, view in by_urgency),
        severity=by_urgency[0][1].severity,
        sections=_sections(every),
        actions=tuple(sorted(actions, key=lambda action: _URGENCY.index(action.severity.level))),
        risk=next((view.risk for view in every if view.risk is not None), None),
        facts=_once(fact for view in every for fact in view.facts),
        made_by=every[0].made_by,
    )


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."


def _sections(views: Sequence[View]) -> tuple[Section, ...]:
    every = [section for view in views for section in view.sections]
    again = [section for section in every if section.key == AGAIN]
    kept = [section for section in every if section.key != AGAIN] + ([_merged(again)] if again else [])
    return tuple(sorted(kept, key=lambda section: _LAST.index(section.key) if section.key in _LAST else -1))


def _merged(sections: Sequence[Section]) -> Section:
    """All commands, and each fact once."""
    blocks = [block for section in sections for block in section.blocks if isinstance(block, Reproduce)]
    commands = tuple(dict.fromkeys(command for block in blocks for command in block.commands))
    facts = _once(fact for block in blocks for fact in block.facts)
    return replace(sections[0], blocks=(Reproduce(commands, facts),))


def _once(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    return tuple(dict.fromkeys(facts))
