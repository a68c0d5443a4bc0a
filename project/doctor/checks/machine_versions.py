"""Versions: within the project's ranges, fitting one another, none known to be bad."""

from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement

from project.doctor import Finding, Skip, Subject, check, fail, passed, warn

# Package: {version: what is wrong with it}.
KNOWN_BAD: dict[str, dict[str, str]] = {
    "lightning": dict.fromkeys(
        ("2.6.2", "2.6.3"),
        "this release on PyPI was malicious (GHSA-w37p-236h-pfx3)",
    ),
}


def installed(package: str) -> str | None:
    """Return the version of a package, None if it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def required(package: str) -> list[Requirement]:
    """Return what a package requires here; extras left out."""
    try:
        lines = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.append(requirement)
    return found


@check("machine")
def known_bad_releases(subject: Subject) -> Iterator[Finding]:
    """No package is of a release that is known to be bad."""
    for package, releases in KNOWN_BAD.items():
        version = installed(package)
        if version in releases:
            yield fail(
                f"{package} {version}: {releases[version]}",
                f"Uninstall it, change the passwords and keys that this machine holds, and "
                f'install another: pip install -U "{package}!={version}"',
            )


@check("machine")
def versions(subject: Subject) -> Finding:
    """Packages are of the versions that the project and torchvision ask for."""
    own = __name__.split(".")[0]
    wanted = [(own, requirement) for requirement in required(own)]
    wanted += [("torchvision", r) for r in required("torchvision") if r.name == "torch"]
    if not wanted:
        raise Skip(f"{own} is not installed as a package, so it has no list")
    wrong = []
    for owner, requirement in wanted:
        version = installed(requirement.name)
        if version is None:
            wrong.append(f"{owner} needs {requirement.name}, which is not there")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{owner} needs {requirement.name}{requirement.specifier}, not {version}")
    if wrong:
        return warn("; ".join(wrong), "Install what the project was tested with: make")
    told = (f"{name} {installed(name)}" for name in ("torch", "lightning", "torchvision"))
    return passed(", ".join(told))
