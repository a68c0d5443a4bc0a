"""What all checks have found, for people, for programs and for pytest."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from project.disk import writing
from project.doctor.registry import Status

ORDER: tuple[Status, ...] = ("FAIL", "WARN", "PASS", "SKIP")


@dataclass(frozen=True)
class Result:
    """One finding of one check.

    Args:
        check: Name of the check.
        group: Its group.
        status: PASS, WARN, FAIL or SKIP.
        evidence: Numbers, names and files.
        advice: What to do.
        seconds: Time that the check took.
    """

    check: str
    group: str
    status: Status
    evidence: str
    advice: str
    seconds: float

    @property
    def line(self) -> str:
        """What was found where, and what to do, in one line."""
        advice = f" → {self.advice}" if self.advice else ""
        return f"{self.check}: {self.evidence}{advice}"


@dataclass
class Report:
    """All findings.

    Args:
        findings: In the order of the checks.
    """

    findings: list[Result] = field(default_factory=list)

    @property
    def failed(self) -> list[Result]:
        """The findings that are FAIL."""
        return self.of("FAIL")

    def of(self, *statuses: Status) -> list[Result]:
        """Return the findings of these statuses."""
        return [found for found in self.findings if found.status in statuses]

    def named(self, check: str) -> list[Result]:
        """Return the findings of one check."""
        return [found for found in self.findings if found.check == check]

    def raise_for_failures(self) -> None:
        """Do nothing unless a check has failed.

        Raises:
            AssertionError: With what failed, why, and what to do.
        """
        if self.failed:
            raise AssertionError("\n".join(found.line for found in self.failed))

    def counts(self) -> str:
        """Return how many findings there are of each status, in one line."""
        found = Counter(result.status for result in self.findings)
        return ", ".join(f"{found[status]} {status}" for status in ORDER)

    def skipped(self) -> list[str]:
        """Return the reasons why checks were skipped, in a line each, with their names."""
        checks: dict[str, list[str]] = {}
        for found in self.of("SKIP"):
            checks.setdefault(found.evidence, []).append(found.check)
        return [f"{', '.join(names)}: {reason}" for reason, names in checks.items()]

    def write(self, file: Path) -> None:
        """Write all findings as JSON."""
        counts = Counter(result.status for result in self.findings)
        content = {
            "counts": {status: counts[status] for status in ORDER},
            "findings": [asdict(result) for result in self.findings],
        }
        with writing(file, "or write it elsewhere: --output FILE"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content, indent=2) + "\n")
