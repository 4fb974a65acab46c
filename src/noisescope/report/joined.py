"""Several views of one model as one: the worst verdict first, all that is to be done by urgency, all sections once.

It adds no figure and no judgement to what the views say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from noisescope.report.origin import AGAIN
from noisescope.report.view import Fact, Level, Reproduce, Risk, Section, Statement, View

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
    (_, worst), *others = by_urgency
    actions = [action for view in every for action in view.actions]
    return View(
        title=title,
        subject=", ".join(dict.fromkeys(part for view in every for part in view.subject.split(", ") if part)),
        verdict=worst.verdict,
        severity=worst.severity,
        besides=tuple(Statement(name, view.severity, view.verdict) for name, view in others),
        sections=_sections(every),
        actions=tuple(sorted(actions, key=lambda action: _URGENCY.index(action.severity.level))),
        risk=_risk(every, worst),
        facts=_once(fact for view in every for fact in view.facts),
        made_by=every[0].made_by,
    )


def _risk(views: Sequence[View], worst: View) -> Risk | None:
    """The risk of the view that has one; it is no part of the worst verdict where that is another's."""
    of = next((view for view in views if view.risk is not None), None)
    if of is None or of.risk is None or of is worst:
        return None if of is None else of.risk
    how = f"It is that of the model under noise; the verdict is about something else. {of.risk.how}"
    return replace(of.risk, how=how.strip())


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
