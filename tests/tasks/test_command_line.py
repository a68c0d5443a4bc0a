import pytest
import torch
from lightning.pytorch.cli import LightningCLI
from torch.optim.lr_scheduler import ReduceLROnPlateau

from project.optim import WarmupCosine
from project.tasks import ClassificationTask

TASK = "project.tasks.ClassificationTask"
NET = "small_nets.MLP"


@pytest.fixture
def cli(tmp_path, data, monkeypatch):
    monkeypatch.setattr("sys.argv", ["lightning"])
    monkeypatch.setenv("JSONARGPARSE_DEPRECATION_WARNINGS", "off")

    def build(*args: str, net: str = NET) -> LightningCLI:
        settings = {"in_channels": 1, "image_size": 4, "num_classes": 3}
        net_args = [f"--model.net.{k}={v}" for k, v in settings.items()] if net == NET else []
        return LightningCLI(
            ClassificationTask,
            data,
            subclass_mode_model=True,
            auto_configure_optimizers=False,
            save_config_callback=None,
            run=False,
            seed_everything_default=1,
            trainer_defaults={
                "accelerator": "cpu",
                "max_epochs": 1,
                "logger": False,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "num_sanity_val_steps": 0,
                "default_root_dir": str(tmp_path),
            },
            args=[
                f"--model={TASK}",
                "--model.num_classes=3",
                f"--model.net={net}",
                *net_args,
                *args,
            ],
        )

    return build


def fit(built: LightningCLI) -> tuple[torch.optim.Optimizer, object]:
    built.trainer.fit(built.model, built.datamodule)
    configs = built.trainer.lr_scheduler_configs
    return built.trainer.optimizers[0], configs[0].scheduler if configs else None


def test_defaults_are_shown_and_used(cli):
    built = cli()
    shown = built.config.model.init_args
    assert shown.optimizer.class_path == "torch.optim.AdamW"
    assert shown.scheduler.class_path == "project.optim.WarmupCosine"
    assert shown.scheduler.init_args.warmup_steps == 0.05
    optimizer, scheduler = fit(built)
    assert type(optimizer) is torch.optim.AdamW
    assert scheduler.total_steps == 8


def test_optimizer_by_name(cli):
    optimizer, _ = fit(cli("--model.optimizer=torch.optim.SGD", "--model.optimizer.lr=1e-1"))
    assert type(optimizer) is torch.optim.SGD
    assert optimizer.param_groups[0]["initial_lr"] == 0.1


def test_no_schedule(cli):
    assert fit(cli("--model.scheduler=null"))[1] is None


@pytest.mark.parametrize(("given", "steps"), [("3", 3), ("5e-1", 4), ("3e0", 3)])
def test_warmup_in_steps_or_as_a_fraction(cli, given, steps):
    scheduler = fit(cli(f"--model.scheduler.warmup_steps={given}"))[1]
    assert isinstance(scheduler, WarmupCosine)
    assert scheduler.warmup == steps


def test_plateau_by_name(cli):
    scheduler = fit(cli("--model.scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau"))[1]
    assert isinstance(scheduler, ReduceLROnPlateau)


def test_one_cycle_takes_its_length_from_the_trainer(cli):
    name = "--model.scheduler=torch.optim.lr_scheduler.OneCycleLR"
    assert fit(cli(name, "--model.scheduler.max_lr=0.1"))[1].total_steps == 8


def test_network_function_of_torchvision(cli):
    built = cli(
        "--model.net.num_classes=3",
        "--data.image_size=32",
        "--data.samples=8",
        net="torchvision.models.resnet18",
    )
    fit(built)
    assert type(built.model.net).__name__ == "ResNet"


def test_numbers_with_exponents_stay_numbers_in_yaml(cli, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "model:\n  class_path: project.tasks.ClassificationTask\n  init_args:\n"
        "    label_smoothing: 1e-1\n    class_weights: [1e0, 2e-1, 1]\n"
        "    optimizer:\n      class_path: torch.optim.AdamW\n"
        "      init_args: {lr: 1e-2, weight_decay: 1e-2}\n"
        "    scheduler:\n      class_path: project.optim.WarmupCosine\n"
        "      init_args: {warmup_steps: 1e-1, final_lr_fraction: 1e-2}\n"
    )
    built = cli(f"--config={recipe}")
    optimizer, scheduler = fit(built)
    assert built.model.label_smoothing == 0.1
    assert optimizer.param_groups[0]["weight_decay"] == 0.01
    assert scheduler.final_lr_fraction == 0.01


def test_checkpoint_loads_without_arguments(cli, tmp_path):
    built = cli("--model.label_smoothing=0.1")
    fit(built)
    built.trainer.save_checkpoint(tmp_path / "a.ckpt")
    torch.load(tmp_path / "a.ckpt", weights_only=True)
    loaded = ClassificationTask.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    images = torch.randn(5, 1, 4, 4)
    loaded.eval()
    built.model.eval()
    assert torch.equal(loaded(images), built.model(images))
    assert loaded.label_smoothing == 0.1


def test_checkpoint_loads_without_the_pretrained_weights_that_its_network_began_with(cli, tmp_path):
    built = cli(
        *("--model.net.name=small", "--model.net.weights=DEFAULT", "--data.image_size=4"),
        net="small_nets.Pretrained",
    )
    fit(built)
    built.trainer.save_checkpoint(tmp_path / "a.ckpt")
    loaded = ClassificationTask.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert built.model.net.began_with == "DEFAULT"
    assert loaded.net.began_with is None
    assert torch.equal(loaded.net.layer.weight, built.model.net.layer.weight)
    with pytest.raises(TypeError, match="cannot be called on an instance"):
        loaded.load_from_checkpoint(tmp_path / "a.ckpt")
