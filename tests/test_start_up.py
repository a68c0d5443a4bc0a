"""What a start does once, later or not at all; `benchmarks/start_up.py` has the seconds."""

import gc
import subprocess
import sys
from typing import Any

import pytest

from project import heavy
from project.cli import main
from project.parser import Parser
from project.recipes import DEFAULTS
from project.verbs import Command

ONE_STEP = ["--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--model.net.hidden_dim=8"]
# Beside Lightning and torchvision, with all that they import.
NEEDED = {"project", "jsonargparse", "docstring_parser", "typeshed_client", "attr", "attrs"}


def test_the_settings_are_dumped_once_and_the_defaults_read_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dumped, read = [], []
    dump, load = Parser.dump, Parser._load_config_parser_mode

    def noting_dump(self: Parser, settings: Any, *args: Any, **kwargs: Any) -> str:
        dumped.append("trainer" in settings or "fit" in settings)
        return dump(self, settings, *args, **kwargs)

    def noting_load(self: Parser, content: str, *args: Any, **kwargs: Any) -> Any:
        read.append(content == DEFAULTS.read_text())
        return load(self, content, *args, **kwargs)

    monkeypatch.setattr(Parser, "dump", noting_dump)
    monkeypatch.setattr(Parser, "_load_config_parser_mode", noting_load)
    monkeypatch.setattr(Command, "fit", lambda *_, **__: None)
    assert main(["fit", *ONE_STEP]) == 0
    assert sum(dumped) == 1
    assert sum(read) == 1


@pytest.mark.parametrize("is_ours", [True, False])
def test_garbage_is_not_looked_for_during_the_imports(
    is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, frozen = [], []
    monkeypatch.setattr(heavy, "import_module", lambda _: searches.append(gc.isenabled()))
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    if is_ours:
        monkeypatch.delitem(sys.modules, "torch")
    heavy.import_lightning()
    assert searches == [False]
    assert gc.isenabled()
    assert bool(frozen) == is_ours  # else the caller's own objects would never be looked at


def test_a_caller_that_looks_for_no_garbage_is_left_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heavy, "import_module", lambda _: None)
    gc.disable()
    try:
        heavy.import_lightning()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_run_imports_no_package_that_it_has_no_use_for() -> None:
    code = (
        "import sys, lightning.pytorch, torchvision, tensorboard, torch.utils.tensorboard; "
        "from torchvision.transforms import v2; before = {*sys.modules}; "
        f"from project.cli import main; main(['fit', *{ONE_STEP}]); "
        "tops = {name.split('.')[0] for name in {*sys.modules} - before}; "
        "print('new:', *sorted(tops - {name.split('.')[0] for name in before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    new = done.stdout.split("new:")[-1].split()
    assert done.returncode == 0, done.stderr
    assert set(new) - sys.stdlib_module_names <= NEEDED
