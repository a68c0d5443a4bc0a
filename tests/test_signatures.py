"""Arguments read from the source are those that Python and the parser see."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser

from project.signatures import arguments

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
OTHERS = (
    "lightning.pytorch.Trainer",
    "lightning.pytorch.loggers.CSVLogger",
    "project.models.MaskedConvNet",
    "torch.optim.lr_scheduler.OneCycleLR",
)


def classes(content: object) -> Iterator[str]:
    if isinstance(content, dict):
        for key, value in content.items():
            yield from [value] if key == "class_path" else classes(value)


NAMED = {
    path
    for file in sorted(CONFIGS.rglob("*.yaml"))
    for path in classes(yaml.safe_load(file.read_text()))
}


@pytest.mark.parametrize("path", sorted({*NAMED, *OTHERS}))
def test_the_arguments_are_those_that_the_parser_takes(path: str) -> None:
    module, name = path.rsplit(".", 1)
    parser = ArgumentParser(exit_on_error=False)
    taken = parser.add_class_arguments(
        getattr(importlib.import_module(module), name), fail_untyped=False
    )
    found = arguments(path)
    assert found is not None
    assert sorted(found) == sorted(taken)


@pytest.fixture
def net(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the user's that can be imported, and never is."""
    monkeypatch.syspath_prepend(workdir)
    Path("bases_r7.py").write_text(
        "class Base:\n    def __init__(self, width: int, *, depth: int = 1, bias=True): ...\n"
    )
    return Path("net_r7.py")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class Net:\n    pass", ()),
        ("class Net:\n    def __init__(self, a, *, b=1): ...", ("a", "b")),
        ("from bases_r7 import Base\nclass Net(Base):\n    pass", ("width", "depth", "bias")),
        ("import bases_r7 as b\nclass Net(b.Base):\n    pass", ("width", "depth", "bias")),
        ("from bases_r7 import Base as Net", ("width", "depth", "bias")),
        ("from bases_r7 import *\nclass Net:\n    pass\nNet.__doc__ = 'x'", ()),
        ("class Net:\n    '\\w'\n    x = 1", ()),
        (
            "from bases_r7 import Base\nclass Net(Base):\n    def __init__(self, own, **kwargs):\n"
            "        super().__init__(width=own, **kwargs)",
            ("own", "depth", "bias"),
        ),
    ],
)
def test_a_class_is_followed_through_imports_and_bases(
    net: Path, text: str, expected: tuple[str, ...]
) -> None:
    net.write_text(text)
    assert arguments("net_r7.Net") == expected


@pytest.mark.parametrize(
    "text",
    [
        "class Nett:\n    pass",
        "def Net(width): ...",
        "class Net:\n    def __init__(self, *args): ...",
        "class Net:\n    def __init__(self, **kwargs): ...",
        "@decorate\nclass Net:\n    pass",
        "class Net:\n    @decorate\n    def __init__(self, a): ...",
        "class Net:\n    def __new__(cls, a): ...",
        "class Net:\n    if x:\n        def __init__(self, a): ...",
        "class Net(Unknown):\n    pass",
        "class Net(make(1)):\n    pass",
        "from bases_r7 import Base\nclass Net(Base, Other):\n    pass",
        "from bases_r7 import Base\nclass Net(Base):\n    def __init__(self, **kwargs):\n"
        "        kwargs.pop('x')\n        super().__init__(**kwargs)",
        "from bases_r7 import Base\nclass Net(Base):\n    def __init__(self, **kwargs):\n"
        "        super().__init__(3, **kwargs)",
        "class Net:\n    __init__ = initialise",
        "class Net:\n    def __init__(self, a): ...\n    __init__ = initialise",
        "class Net:\n    with x:\n        def __init__(self, a): ...",
        "class Net:\n    pass\nNet = decorate(Net)",
        "class Net:\n    pass\nNet: type = decorate(Net)",
        "class Net:\n    pass\nNet, x = y",
        "class Net:\n    pass\nNet.__init__ = initialise",
        "class Net:\n    pass\ndecorate(Net)",
        "class Net:\n    pass\nif x:\n    class Net:\n        def __init__(self, a): ...",
        "class Net:\n    pass\ntry:\n    from fast import Net\nexcept ImportError:\n    pass",
        "class Net:\n    pass\nfrom fast import *",
        "class Net:\n    pass\ndef Net(width): ...",
        "from net_r7 import Net",
        "class Net(:",
        "\x00",
    ],
)
def test_where_only_python_can_say_nothing_is_said(net: Path, text: str) -> None:
    net.write_text(text)
    assert arguments("net_r7.Net") is None


@pytest.mark.parametrize("path", ["Net", "nowhere_r7.Net", "sys.Net", "net_r7", ".", "a b.C"])
def test_no_such_file(path: str) -> None:
    assert arguments(path) is None


def test_a_file_that_has_changed_is_read_again(net: Path) -> None:
    for name in ("a", "bc"):
        net.write_text(f"class Net:\n    def __init__(self, {name}): ...")
        assert arguments("net_r7.Net") == (name,)
