"""Give the package another name: in code, configs, notebooks, settings and docs.

Example: `lightning rename my_net`

A word or a setting that happens to be spelt like the package stays. Needs the standard library
only, so that `make rename NAME=my_net` can be the first thing done in a fresh clone.
"""

import keyword
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from project.mistakes import UserError

# Folders that runs and tools make (.gitignore names them), or that the house has already.
MADE = {"data", "logs", "build", "dist", "lightning_logs", "wandb", "mlruns"}
RESERVED = MADE | {"configs", "tests", "notebooks"}
# Packages that come with the dependencies under a name that .ci/constraints.txt does not show.
IMPORTED_AS = {"pil", "yaml", "google", "functorch", "torchgen", "lightning_fabric"}
# Tables of pyproject.toml whose keys are names of ours, and those whose values may be.
KEYS_ARE_OURS = re.compile(r"project[.](gui-)?scripts|tool[.]setuptools[.][\w-]*package-(data|dir)")
VALUES_ARE_OURS = re.compile(r"project\b|tool\.(setuptools|ruff|mypy|pytest|coverage|pyright)\b")


def main(argv: Sequence[str] | None = None, package: Path | None = None) -> int:
    """Rename the package and everything that names it.

    Args:
        argv: The new name, alone.
        package: The package's folder; by default the one that this file lies in.

    Returns:
        0 when done; 2, with nothing changed, when the name or the working tree does not allow it.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    package = package or Path(__file__).resolve().parents[1]
    try:
        new = _checked_name(argv, package)
        _refuse_uncommitted(package.parent)
        counts = _rename(package, new)
    except UserError as mistake:
        print(mistake, file=sys.stderr)
        return 2
    _drop_old_install(package)
    print(f"{package.name} is now {new}:")
    print("  " + ", ".join(f"{where} {count}" for where, count in sorted(counts.items())))
    print("Next: `make test` installs it under its new name; then `git add --all` and commit.")
    if (package.parent / "logs").is_dir():
        print("Runs in logs/ name the old package and no longer load: train them again.")
    return 0


def _checked_name(argv: Sequence[str], package: Path) -> str:
    if len(argv) != 1 or not argv[0]:
        raise UserError("Give one name: make rename NAME=my_net")
    new, root = argv[0], package.parent
    if not re.fullmatch(r"[a-z][a-z0-9_]*", new):
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", new)
        snake = re.sub(r"[^a-z0-9]+", "_", snake.lower()).strip("_0123456789")
        raise UserError(
            f"{new!r} is no name for a package: lower-case letters, digits and _, a letter first.\n"
            f"For example: make rename NAME={snake or 'my_net'}"
        )
    reason = None
    if new == package.name:
        reason = "is what it is called already"
    elif keyword.iskeyword(new):
        reason = "is a word of the Python language"
    elif new in sys.stdlib_module_names:
        reason = "is a module of Python's standard library"
    elif new in IMPORTED_AS or new in _dependencies(root):
        reason = "is a package that this project needs"
    elif new in RESERVED or (root / new).exists():
        reason = "is a file or folder of this project"
    if reason:
        raise UserError(f"{new!r} {reason}. Take another: make rename NAME=my_net")
    return new


def _dependencies(root: Path) -> set[str]:
    """List the import names of what is pinned and of what is installed in ``.venv``."""
    pins = root / ".ci" / "constraints.txt"
    lines = pins.read_text().splitlines() if pins.exists() else []
    names = [line.split("==")[0] for line in lines if not line.startswith("#")]
    names += [path.name for path in (root / ".venv").glob("lib/python*/site-packages/*")]
    return {re.split(r"[.\[]|-\d", name)[0].lower().replace("-", "_") for name in names}


def _git(root: Path, *args: str) -> str | None:
    """Return what git says, or None where ``root`` is no git repository of its own."""
    try:
        top = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--show-toplevel"], capture_output=True, text=True
        )
        if top.returncode or Path(top.stdout.strip()).resolve() != root.resolve():
            return None
        done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def _refuse_uncommitted(root: Path) -> None:
    if changed := _git(root, "status", "--porcelain", "--untracked-files=no"):
        raise UserError(
            f"{len(changed.splitlines())} files have changes that are not committed.\n"
            "Commit or `git stash` them first, so that `git diff` shows the renaming alone."
        )


def _files(root: Path) -> Iterator[Path]:
    """Yield the project's own files: what git knows or would add, or all but caches without git."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        found = [root / name for name in listed.split("\0") if name]
    else:
        skipped = MADE | {".git", ".venv", "__pycache__"}
        top = [path for path in root.iterdir() if path.name not in skipped]
        found = [inner for path in top for inner in (path.rglob("*") if path.is_dir() else [path])]
        found = [path for path in found if "__pycache__" not in path.parts]
    yield from (p for p in found if p.is_file() and not p.is_symlink() and p.name != "LICENSE")


def _rename(package: Path, new: str) -> Counter[str]:
    """Rewrite all files and move the folder, or change nothing; count what changed where."""
    root, old = package.parent, package.name
    changes: dict[Path, tuple[bytes, bytes]] = {}
    counts: Counter[str] = Counter()
    for path in _files(root):
        before = path.read_bytes()
        try:
            text, count = rewrite(before.decode(), old, new, path.suffix)
        except UnicodeDecodeError:
            continue  # a picture or an array
        if count:
            changes[path] = (before, text.encode())
            top = path.relative_to(root).parts[0]
            counts[new if top == old else top] += count
    try:
        for path, (_, after) in changes.items():
            path.write_bytes(after)
        package.rename(root / new)
    except OSError as error:
        for path, (before, _) in changes.items():
            path.write_bytes(before)
        raise UserError(
            f"Nothing is renamed: {error}. Make the files writable, then try again."
        ) from error
    return counts


def rewrite(text: str, old: str, new: str, suffix: str = "") -> tuple[str, int]:
    """Put ``new`` where ``text`` means the package ``old``.

    Args:
        text: A whole file.
        old: The package's name now.
        new: Its name to be.
        suffix: The file's ending; ``.toml`` is read table by table.

    Returns:
        The new text, and how many names changed.
    """
    rules = _rules(re.escape(old))
    if suffix == ".py" and re.search(rf"^\s*import {re.escape(old)}$", text, flags=re.MULTILINE):
        rules.append(rf"[(,]\s*{re.escape(old)}(?=\s*[,)])")  # dir(project)
    if suffix != ".toml":
        return _apply(text, rules, old, new)
    lines, total, table = [], 0, ""
    for line in text.splitlines(keepends=True):
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            table = header[1].strip()
        else:
            line, count = _apply(line, rules + _toml_rules(re.escape(old), table), old, new)
            total += count
        lines.append(line)
    return "".join(lines), total


def _apply(text: str, rules: list[str], old: str, new: str) -> tuple[str, int]:
    """Apply rules, each of which matches up to the end of the old name."""
    total = 0
    for rule in rules:
        text, count = re.subn(
            rule, lambda found: found[0][: -len(old)] + new, text, flags=re.MULTILINE
        )
        total += count
    return text, total


def _rules(old: str) -> list[str]:
    """Say where a text means the package; elsewhere ``project`` is a word or another's setting."""
    quote = r"\\?[\"']"  # notebooks are JSON, where a quote is escaped
    start = r"(?:(?<=\\n)|(?<![\w./@-]))"  # not inside a longer name, path or address
    verbs = r"(?:fit|validate|test|predict|export|serve|doctor|rename|--\w+)\b"
    ends = r"\s*(?:$|--|[#|&;\\])"  # a wrapped line of prose can begin with "project test suite"
    tables = r"(?:scripts|gui-scripts|urls|optional-dependencies|entry-points|dependencies|name)\b"
    calls = (
        r"import_module|find_spec|__import__|version|metadata|distribution|files|Path|run_module"
    )
    return [
        # project.data.X, f"project.{room}", r"project\.data"; but not the tables of pyproject.toml
        rf"{start}{old}(?=\.(?!{tables})[A-Za-z_{{*<$]|\\+\.|:main\b)",
        rf"(?<=[\"'`]){old}(?=\.[\"'`])",
        # imports; `import project settings` is prose
        rf"(?:(?<=\\n)|\b)from\s+{old}(?=\s+import\b)",
        rf"(?:(?<=\\n)|\b)import\s+{old}(?=\s*(?:$|as\b|[,;#\"'`)\\]))",
        # command lines: -m project, "-m", "project", mypy project, bin/project, `project fit`
        rf"-m(?:\s+|{quote},\s*{quote}){old}(?![\w.-])",
        rf"(?:mypy|ruff check|ruff format|--strict|--check|--cov)[ =]{old}(?![\w./-])",
        rf"(?<=\bbin/){old}(?![\w-])",
        rf"(?:`|\$ ){old}(?=\s+{verbs})",
        rf"^\s*{old}(?=\s+{verbs}{ends})",
        rf"[\[(,]\s*{quote}{old}(?={quote},\s*{quote}{verbs})",
        # paths: project/data, ./project/data, /project/ in .gitignore, root / "project"
        rf"(?:{start}|(?<=\./)|(?<=[)}}]/)|(?<=^/)){old}(?=/)",
        rf"/\s*{quote}{old}(?={quote})",
        rf"\b(?:{calls})\(\s*{quote}{old}(?={quote})",
        # `project` alone in backticks is the package
        rf"(?<=`){old}(?=`)",
    ]


def _toml_rules(old: str, table: str) -> list[str]:
    """Say where else a line of this table of a TOML file means the package."""
    keys = [rf"^\s*\"?{old}(?=\"?\s*=)"] if KEYS_ARE_OURS.fullmatch(table) else []
    # "project", "project*" and "project[dev]", but not the value of another's key `project`
    ours = VALUES_ARE_OURS.match(table)
    values = [rf"(?<=\"){old}(?=\*?\"|\[)"] if ours else []
    return keys + values


def _drop_old_install(package: Path) -> None:
    """Take the old name out of ``.venv``; make will install the new one."""
    root, python = package.parent, package.parent / ".venv" / "bin" / "python"
    for path in root.glob(f"{package.name}.egg-info/*"):
        path.unlink()
    for path in root.glob(f"{package.name}.egg-info"):
        path.rmdir()
    if not python.exists():
        return
    # A longer or shorter name can move a line break; ruff may not be installed, which is no harm.
    for command in (
        ["pip", "uninstall", "--quiet", "--yes", package.name],
        ["ruff", "format", "--quiet"],
        ["ruff", "check", "--quiet", "--select", "I", "--fix"],
    ):
        subprocess.run([str(python), "-m", *command], cwd=root, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
