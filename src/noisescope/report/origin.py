"""Where a report's figures come from: the model, the workload, the machine, the versions, the command.

It reads no files; whoever has a run folder open passes what it says.
"""

from __future__ import annotations

from dataclasses import dataclass

from noisescope.report.view import Fact, Reproduce, Section

Named = tuple[tuple[str, str], ...]
AGAIN = "again"


@dataclass(frozen=True)
class Origin:
    """What a person needs to get the same figures again. `fingerprints` are hashes of the model and the workloads.

    `remark` is what a reader has to know before anything else, such as that a fault was planted.
    """

    model: str
    workload: str = ""
    device: str = ""
    command: str = ""
    remark: str = ""
    versions: Named = ()
    settings: Named = ()
    fingerprints: Named = ()

    @property
    def made_by(self) -> str:
        return f"Made by noisescope {dict(self.versions).get('noisescope', '')}".strip()


def reproduce_section(origin: Origin, more: Named = ()) -> Section:
    """The command, the versions and the hashes."""
    facts = [Fact(name, value) for name, value in (*origin.versions, *origin.settings, *more)]
    facts += [Fact(f"hash of the {name}", value) for name, value in origin.fingerprints]
    if origin.device:
        facts.append(Fact("device", origin.device))
    commands = (origin.command,) if origin.command else ()
    intro = (
        "Equal versions, settings and hashes on one device give equal figures: noise depends on seed, layer, operator "
        "and call alone."
    )
    return Section(AGAIN, "How to get these figures again", (Reproduce(commands, tuple(facts)),), intro)
