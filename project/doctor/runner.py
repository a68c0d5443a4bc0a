"""Runs checks one after another, each by itself."""

import time
import traceback
from collections.abc import Callable, Collection

from project.doctor.isolation import isolated
from project.doctor.loop import HERE, Broken
from project.doctor.registry import Check, Finding, Skip, all_checks
from project.doctor.report import Report, Result
from project.doctor.subject import Subject

USUAL = 45.0  # seconds for all checks


def run_checks(
    subject: Subject,
    groups: Collection[str],
    only: Collection[str] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Run checks.

    Args:
        subject: What is looked at.
        groups: Groups of checks.
        only: Names of the checks to run; by default all of the groups.
        progress: Is told the name of each check before it runs.
    """
    report, broken = Report(), dict[str, str]()
    # Who gives more time than usual has a slow machine or a slow network.
    patience = max(1.0, (subject.end - time.monotonic()) / USUAL)
    for check in all_checks():
        if check.group not in groups or (only is not None and check.name not in only):
            continue
        progress(check.name)
        began = time.monotonic()
        for found in _run(check, subject, broken, patience):
            seconds = round(time.monotonic() - began, 3)
            report.findings.append(
                Result(check.name, check.group, found.status, found.evidence, found.advice, seconds)
            )
    return report


def _run(check: Check, subject: Subject, broken: dict[str, str], patience: float) -> list[Finding]:
    """Run one check; turn whatever happens into findings.

    Args:
        check: The check.
        subject: What is looked at.
        broken: What the user's code raised so far, and in which check.
        patience: How many times its usual time the check has.
    """
    subject.check_end = time.monotonic() + check.seconds * patience
    if subject.seconds_left <= 0 and check.group != "machine":  # those take no time
        return [Finding("SKIP", "no time left")]
    try:
        with isolated(subject.seed):
            answer = check.run(subject)
            found = [answer] if isinstance(answer, Finding) else list(answer)
        return found or [Finding("PASS", "")]
    except Skip as reason:
        return [Finding("SKIP", str(reason))]
    except Broken as error:
        return [_of_the_user(check, error, broken)]
    except (Exception, SystemExit) as error:
        if _is_ours(error, check):
            what = f"{type(error).__name__}: {error}".split("\n")[0]
            return [Finding("WARN", f"the check could not run: {what}", "Report this as a bug.")]
        return [_of_the_user(check, Broken(error), broken)]
    finally:
        subject.kept.restore()


def _of_the_user(check: Check, error: Broken, broken: dict[str, str]) -> Finding:
    """Report what the user's code raised once, however many checks it stops."""
    text = " ".join(str(error).split())
    first = broken.setdefault(text, check.name)
    if first != check.name:
        return Finding("SKIP", f"stopped by the error that {first} shows")
    return Finding("FAIL", text[:500], "Training would stop here too: correct it first.")


def _is_ours(error: BaseException, check: Check) -> bool:
    """Whether a check itself is at fault: no code of the user's lies between it and the error."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    own = check.run.__code__.co_filename
    last = max(i for i, name in enumerate(files) if name.startswith(str(HERE)) or name == own)
    return not any(
        "site-packages" not in name and "/lib/python" not in name and name[0] != "<"
        for name in files[last + 1 :]
    )
