"""A view as Markdown: all of its words and figures, with a table in place of every picture.

It decides nothing. Text that came from models and data cannot become markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from noisescope.report.grids import Grid, Written, fact_text, grid_of
from noisescope.report.view import Action, Block, Fact, Facts, Note, NotMeasured, Reproduce, Risk, Section, View
from noisescope.report.wording import points

_MARKUP = re.compile(r"([\\`*_\[\]#|~$])")
_LINE_START = re.compile(r"^(\s*)([-+>=]|\d+[.)])")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# A bare address would become a link, and a name after @ a mention.
_AUTOLINK = re.compile(r"(?i)(https?|ftp)(:)|(www)(\.)|(@)")


def to_markdown(view: View) -> str:
    """The whole report."""
    blocks = [f"# {escape(view.title)}", _head(view), *_actions(view.actions)]
    for section in view.sections:
        blocks += _section(section)
    return "\n\n".join(blocks) + f"\n\n---\n\n{escape(view.made_by)}\n"


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    for sign, entity in _ENTITIES.items():
        text = text.replace(sign, entity)
    text = _LINE_START.sub(lambda m: f"{m[1]}{m[2][:-1]}\\{m[2][-1]}", _MARKUP.sub(r"\\\1", text))
    return _AUTOLINK.sub(_unlinked, text)


def _unlinked(found: re.Match[str]) -> str:
    if found[5]:
        return "&#64;"
    return f"{found[1]}&#58;" if found[1] else f"{found[3]}&#46;"


def _head(view: View) -> str:
    lines = [
        f"**Subject:** {escape(view.subject)}",
        f"**Verdict:** {escape(view.verdict)} ({escape(view.severity.word)})",
    ]
    lines += [f"**{escape(b.name)}:** {escape(b.verdict)} ({escape(b.severity.word)})" for b in view.besides]
    if view.risk is not None:
        lines.append(_risk(view.risk))
    return "\\\n".join(lines) + ("\n\n" + _facts(view.facts) if view.facts else "")


def _risk(risk: Risk) -> str:
    score = "" if risk.score is None else f", score {points(risk.score)}"
    parts = "; ".join(
        f"{escape(s.name)} {points(s.points)}" + (f" ({escape(s.how)})" if s.how else "") for s in risk.shares
    )
    how = f". {escape(risk.how)}" if risk.how else ""
    return f"**Risk:** {escape(risk.severity.word)}{score}" + (f": {parts}" if parts else "") + how


def _facts(facts: tuple[Fact, ...]) -> str:
    return "\n".join(f"- {escape(fact.name)}: {escape(fact_text(fact))}" for fact in facts)


def _actions(actions: tuple[Action, ...]) -> Iterator[str]:
    if actions:
        yield "## What to do"
        yield "\n".join(line for i, action in enumerate(actions, 1) for line in _action(i, action))


def _action(index: int, action: Action) -> Iterator[str]:
    yield f"{index}. **{escape(action.action)}**"
    yield f"   - {escape(action.component)}: {escape(action.issue)} ({escape(action.severity.word)})"
    yield from (f"   - evidence: {escape(text)}" for text in action.evidence)


def _section(section: Section) -> Iterator[str]:
    yield f"## {escape(section.heading)}"
    if section.intro:
        yield escape(section.intro)
    for block in section.blocks:
        yield _block(block)


def _block(block: Block) -> str:
    if isinstance(block, Note):
        return escape(block.text) if block.level == "none" else f"> {escape(block.text)}"
    if isinstance(block, Facts):
        return f"### {escape(block.title)}\n\n{_facts(block.facts)}"
    if isinstance(block, NotMeasured):
        return "\n".join(f"- {escape(gap.what)}: {escape(gap.why)}" for gap in block.gaps)
    if isinstance(block, Reproduce):
        return _reproduce(block)
    grid = grid_of(block)
    assert grid is not None  # noqa: S101 - every other block is made of figures
    caption = getattr(block, "caption", "")
    return "\n\n".join(part for part in (f"### {escape(grid.title)}", _table(grid), escape(caption)) if part)


def _table(grid: Grid) -> str:
    rows = [grid.heads, *(tuple(map(_cell, line.cells)) for line in grid.lines)]
    heads = " | ".join(map(escape, rows[0]))
    rule = " | ".join("--:" if numeric else "---" for numeric in grid.numeric)
    return "\n".join([f"| {heads} |", f"| {rule} |", *(f"| {' | '.join(row)} |" for row in rows[1:])])


def _cell(cell: Written) -> str:
    return escape(f"{cell.text} {cell.detail}".strip())


def _reproduce(block: Reproduce) -> str:
    # A fence longer than any run of backticks inside cannot be closed from inside.
    longest = max((len(run) for text in block.commands for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    commands = "\n".join(block.commands)
    shown = f"{fence}text\n{commands}\n{fence}" if commands else ""
    return "\n\n".join(part for part in (shown, _facts(block.facts)) if part)
