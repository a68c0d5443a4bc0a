"""Configuration files: where they are, what they say, and which one a wrong name was meant for."""

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import project
from project.mistakes import UserError, suggest

HOME = Path(project.__file__).resolve().parent.parent
CONFIGS = HOME / "configs"
DEFAULTS = CONFIGS / "default.yaml"
BLOCKS = ("trainer", "data", "model")
MORE = ("seed_everything", "experiment", "print_config", "config", "help")  # besides the blocks
ENDINGS = (".yaml", ".yml")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def find_config(name: str) -> Path:
    """Find a configuration from the current folder or, failing that, from the project's.

    Raises:
        UserError: If there is none.
    """
    for path in (Path(name), HOME / name):
        if path.is_file():
            return path.resolve()
    raise UserError(f"No configuration file {name}.{suggest(near_configs(name))}")


def near_configs(name: str) -> list[str]:
    """Return the files that a name may have been meant for: here, beside it and in the project."""
    wanted = Path(name)
    folders = dict.fromkeys((Path(), wanted.parent))
    here = [file for folder in folders for file in sorted(folder.glob("*.y*ml"))]
    known = [str(file) for file in here if file.suffix in ENDINGS]
    known += [str(file.relative_to(HOME)) for file in sorted(CONFIGS.rglob("*.yaml"))]
    known = list(dict.fromkeys(known))
    stem = wanted.stem if wanted.suffix in ENDINGS else wanted.name
    stems = {Path(file).stem for file in known}
    near = [stem] if stem in stems else difflib.get_close_matches(stem, stems, n=2, cutoff=0.75)
    found = [file for like in near for file in known if Path(file).stem == like]
    # Of several with this name, those in the folder that was named.
    return [file for file in found if Path(file).parent == wanted.parent] or found[:3]


def read_config(path: Path) -> dict[str, Any]:
    """Return what a configuration says.

    Raises:
        UserError: If it is no YAML mapping in UTF-8.
    """
    try:
        content = load_yaml(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save it as such.") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}, column {where.column + 1}" if where else ""
        problem = getattr(error, "problem", error)
        raise UserError(f"{path}{line}: not valid YAML: {problem}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: a configuration is a YAML mapping such as `trainer: …`.")
    # A block whose lines are all commented out says nothing.
    return {key: value for key, value in content.items() if value is not None or key not in BLOCKS}


def load_yaml(content: str) -> Any:  # noqa: ANN401
    """Load YAML by PyYAML's loader in C, ten times faster than the other, which says more."""
    try:
        return yaml.load(content, _Loader)
    except yaml.YAMLError:
        return yaml.safe_load(content)


def still_known(path: Path) -> Path | str:
    """Return a run's configuration, without the callbacks that this project no longer has."""
    content = read_config(path)
    known = {"seed_everything", "experiment", *BLOCKS, *read_config(DEFAULTS)}
    gone = [key for key in content if key not in known]
    if not gone:
        return path
    print(f"Left out, because {DEFAULTS.name} no longer has it: {', '.join(gone)}")
    kept = {key: value for key, value in content.items() if key in known}
    return yaml.safe_dump(kept, sort_keys=False)


def names_data(content: dict[str, Any]) -> bool:
    """Whether a configuration names the class of the data, as recipes do and presets do not."""
    return _names(content.get("data"))


def names_task(content: dict[str, Any]) -> bool:
    """Whether a configuration names the class of the task."""
    return _names(content.get("model"))


def _names(block: object) -> bool:
    return isinstance(block, str) or (isinstance(block, dict) and "class_path" in block)


def leaves(content: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of a configuration with their values, e.g. ``data.init_args.size``."""
    if not isinstance(content, dict):
        yield key, str(content)
        return
    for name, value in content.items():
        yield from leaves(value, f"{key}.{name}".strip("."))


def plain(name: str) -> str:
    """Name a setting as people do on the command line, a class by the place that it has."""
    return name.replace(".init_args", "").removesuffix(".class_path")
