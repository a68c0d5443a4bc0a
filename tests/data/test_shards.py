import functools
import io
import json
import subprocess
import sys
import tarfile
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch._utils import ExceptionWrapper

from project.data.reading import shard_reader
from project.data.reading.shard_reader import ROW, read_index, read_table
from project.data.shards import ShardsDataModule
from project.data.write_shards import index_shards, main, write_folder, write_shards
from project.mistakes import UserError

CLASSES = ["circle", "line", "square"]


def png(number: int, size: tuple[int, int] = (8, 8), colour: bool = False) -> bytes:
    generator = np.random.default_rng(number)
    shape = (*size, 3) if colour else size
    file = io.BytesIO()
    Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8)).save(file, "png")
    return file.getvalue()


def samples(count: int, first: int = 0, **kwargs):
    return [(png(first + k, **kwargs), (first + k) % 3) for k in range(count)]


def write(folder: Path, train: int = 50, val: int = 11, test: int = 7, **kwargs) -> Path:
    splits = {"train": samples(train, **kwargs), "val": samples(val, 1000), "test": samples(test)}
    write_shards(folder, {k: v for k, v in splits.items() if v}, CLASSES, shard_size=20_000)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "shards")


def module(folder: Path | str, num_workers: int = 0, **settings) -> ShardsDataModule:
    # Workers that end with the epoch: those that stay until they are collected cost 5 s each.
    keep = False if num_workers else None
    return ShardsDataModule(
        str(folder),
        num_workers=num_workers,
        persistent_workers=keep,
        **{"batch_size": 4, **settings},
    )


def ready(folder: Path | str, stage: str | None = None, **settings) -> ShardsDataModule:
    data = module(folder, **settings)
    data.setup(stage)
    return data


def indices(loader) -> list[list[int]]:
    return [batch[2].tolist() for batch in loader]


def edit(archive: Path, offset: int, value: bytes) -> None:
    content = bytearray(archive.read_bytes())
    content[offset : offset + len(value)] = value
    archive.write_bytes(content)


# What is read.


def test_images_and_labels_are_those_that_were_written(folder: Path):
    data = ready(folder)
    images, labels, index = data.train_set.__getitems__([3, 49, 0, 7])
    assert len(data.index.shards["train"]) > 1
    assert index.tolist() == [3, 49, 0, 7]
    for image, label, number in zip(images, labels.tolist(), index.tolist(), strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(png(number))))
        assert np.array_equal(image.numpy(), pixels[None])
        assert label == number % 3


def test_facts_are_known_before_anything_is_read(folder: Path):
    data = module(folder)
    assert data.class_names == CLASSES
    assert (data.num_classes, data.in_channels, data.image_size, data.has_test) == (3, 1, 8, True)
    images = torch.cat([ready(folder).train_set.__getitems__([k])[0] for k in range(50)]) / 255
    assert data.mean == pytest.approx([images.mean().item()], abs=1e-4)
    assert data.std == pytest.approx([images.std(correction=0).item()], abs=1e-4)


def test_class_counts_are_those_of_training(folder: Path):
    assert ready(folder, "fit").class_counts == [17, 17, 16]


def test_index_takes_20_bytes_a_sample(folder: Path):
    table = read_table(str(folder), "train")
    assert ROW.itemsize == 20
    assert isinstance(table, np.memmap)
    assert table.nbytes == 50 * 20


def test_any_program_reads_the_archives(folder: Path):
    with tarfile.open(folder / "train-000000.tar") as archive:
        names = ["000000000.png", "000000000.cls", "000000001.png", "000000001.cls"]
        assert archive.getnames()[:4] == names
        assert archive.extractfile("000000001.cls").read() == b"1"


def test_same_images_make_the_same_bytes(tmp_path: Path, folder: Path):
    again = write(tmp_path / "again")
    for file in folder.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_sizes_are_kept_and_padded_on_request(tmp_path: Path):
    sizes = [(5, 9), (12, 4), (7, 7)]
    images = [(png(k, size, colour=True), k) for k, size in enumerate(sizes)]
    write_shards(tmp_path, {"train": images, "val": images}, CLASSES)
    data = ready(tmp_path, image_size=None)
    batch = next(iter(data.val_dataloader()))
    images, labels, _, mask = data.on_after_batch_transfer(batch, 0)
    assert images.shape == (3, 3, 12, 9)
    assert mask.sum((1, 2)).tolist() == [h * w for h, w in sizes]
    assert (images.permute(0, 2, 3, 1)[~mask] == 0).all()
    assert labels.tolist() == [0, 1, 2]


def test_without_validation_shards_some_training_images_are_held_out(tmp_path: Path):
    data = ready(write(tmp_path, train=60, val=0, test=0), "fit", val_fraction=0.2)
    kept, held_out = (set(part.rows.tolist()) for part in (data.train_set, data.val_set))
    assert kept | held_out == set(range(60))
    assert not kept & held_out
    assert len(held_out) == 12
    assert not data.has_test


def test_classes_of_the_run_number_the_labels(tmp_path: Path, folder: Path):
    data = ready(folder, class_names=["line", "square", "circle"])
    labels = data.train_set.__getitems__([0, 1, 2])[1]
    assert labels.tolist() == [2, 0, 1]
    with pytest.raises(UserError, match="square"):
        module(folder, class_names=["circle", "line"])


# In which order, on how many processes and workers.


def test_order_is_a_function_of_seed_and_epoch_for_any_number_of_workers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def epochs(workers: int) -> list[list[list[int]]]:
        loader = ready(folder, num_workers=workers).train_dataloader()
        found = []
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            found.append(indices(loader))
        return found

    none, two = epochs(0), epochs(2)
    assert none == two
    assert none[0] != none[1]
    flat = [i for batch in none[0] for i in batch]
    assert len(set(flat)) == len(flat) == 48  # drop_last
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    assert epochs(0) != none


def test_samples_of_a_batch_come_from_many_shards(folder: Path):
    data = ready(folder, batch_size=24)
    batch = next(iter(data.train_dataloader()))[2].tolist()
    assert len({data.train_set.reader.shard_of(i).name for i in batch}) > 1


@pytest.mark.parametrize("workers", [0, 2])
def test_epoch_goes_on_where_it_was(folder: Path, workers: int):
    whole = ready(folder, num_workers=workers).train_dataloader()
    whole.sampler.set_epoch(3)
    iterator = iter(whole)
    seen = [next(iterator)[2].tolist() for _ in range(5)]
    state = whole.state_dict()

    resumed = ready(folder, num_workers=workers).train_dataloader()
    resumed.load_state_dict(state)
    rest = indices(resumed)
    assert rest == [batch[2].tolist() for batch in iterator]
    assert len(seen) + len(rest) == 12


def test_resume_reads_nothing_that_was_read_before(folder: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[int] = []
    fetch = shard_reader._fetch
    monkeypatch.setattr(
        shard_reader,
        "_fetch",
        lambda root, paths, *rest: [read.append(len(paths)), fetch(root, paths, *rest)][1],
    )
    loader = ready(folder).train_dataloader()
    loader.load_state_dict({"epoch": 0, "batches": 10})
    list(loader)
    assert read == [4, 4]


def of_rank(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: world)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_processes_share_the_samples(folder: Path, monkeypatch: pytest.MonkeyPatch, world: int):
    train, val = [], []
    for rank in range(world):
        of_rank(monkeypatch, rank, world)
        data = ready(folder)
        train.append(indices(data.train_dataloader()))
        val.append([(i, n) for b in data.val_dataloader() for i, n in zip(b[2], b[1], strict=True)])
    assert len({len(batches) for batches in train}) == 1
    trained = [i for batches in train for batch in batches for i in batch]
    assert len(set(trained)) == len(trained)
    assert len({len(part) for part in val}) == 1
    counted = sorted(int(i) for part in val for i, label in part if label != -100)
    assert counted == list(range(11))


# What is wrong with them.


def test_missing_index_says_how_to_make_one(tmp_path: Path):
    with pytest.raises(UserError, match=r"no index.json.*\n.*write_shards"):
        module(tmp_path)


@pytest.mark.parametrize("content", ["{", '{"format": 2}', '{"format": 1}', "[]"])
def test_broken_index_is_refused(tmp_path: Path, content: str):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(UserError, match=r"index\.json cannot be read"):
        module(tmp_path)


@pytest.mark.parametrize("data_dir", ["s3://bucket/shards", "nowhere://x"])
def test_url_that_nothing_reads_is_refused(data_dir: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(UserError, match=r"cannot be read: .*(s3fs|nowhere)"):
        module(data_dir)


def test_damaged_image_names_shard_and_member(folder: Path):
    data = ready(folder)
    table = read_table(str(folder), "train")
    row = 30
    shard = data.train_set.reader.shard_of(row).name
    edit(folder / shard, int(table["offset"][row]) + 60, b"\x00\x01\x02")
    with pytest.raises(UserError, match=rf"{shard}/000000030\.\w+: the bytes are not those"):
        data.train_set.__getitems__([1, row])


def test_image_that_cannot_be_decoded_names_shard_and_member(folder: Path):
    # As if it had been indexed so: only the decoder can tell.
    data = ready(folder)
    reader = data.train_set.reader
    offset, size = (int(reader.table[name][2]) for name in ("offset", "size"))
    edit(folder / "train-000000.tar", offset + 60, b"\x00\x01\x02")
    table = np.array(reader.table)
    content = (folder / "train-000000.tar").read_bytes()[offset : offset + size]
    table["crc"][2] = zlib.crc32(content)
    reader.table = table
    with pytest.raises(UserError, match=r"train-000000\.tar/000000002\.\w+: it is damaged"):
        data.train_set.__getitems__([2])


def test_error_in_a_worker_is_as_short(folder: Path):
    data = ready(folder)
    edit(folder / "train-000000.tar", 600, b"\x00" * 20)
    with pytest.raises(UserError) as told:
        data.train_set.__getitems__([0])
    # What torch does with an error in a worker, without one.
    wrapped = ExceptionWrapper((told.type, told.value, told.tb), where="in DataLoader worker 0")
    with pytest.raises(UserError) as again:
        wrapped.reraise()
    assert str(again.value) == str(told.value)
    assert str(again.value).count("\n") == 1


def test_other_shard_than_indexed_is_noticed_before_training(folder: Path):
    with (folder / "train-000001.tar").open("ab") as file:
        file.write(bytes(512))
    with pytest.raises(UserError, match=r"train-000001\.tar has \d+ bytes, not \d+"):
        ready(folder, "fit")
    (folder / "train-000001.tar").unlink()
    with pytest.raises(UserError, match="is not there"):
        ready(folder, "fit")


def test_shards_of_a_failed_writing_have_no_index(folder: Path):
    with pytest.raises(UserError, match="1 of 3 images"):
        write_shards(folder, {"train": [*samples(2), (b"<html>", 0)]}, CLASSES)
    with pytest.raises(UserError, match=r"no index\.json"):
        module(folder)


def test_test_without_test_shards_is_refused(tmp_path: Path):
    data = module(write(tmp_path, test=0))
    with pytest.raises(UserError, match="no test split"):
        data.setup("test")


def test_label_without_a_class_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"train-000000\.tar: no class has the label 3"):
        write_shards(tmp_path, {"train": [(png(0), 3)]}, CLASSES)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"crop_fraction": 0}, "crop_fraction"),
        ({"val_fraction": 1}, "val_fraction"),
        ({"image_size": 0}, "image_size"),
        ({"mean": [0.5, 0.5], "std": [0.5, 0.5]}, "one number for each of 1 or 3 channels"),
    ],
)
def test_settings_out_of_range_are_refused(folder: Path, setting, message: str):
    with pytest.raises(ValueError, match=message):
        module(folder, **setting)


def test_checkpoint_of_other_classes_is_refused(folder: Path):
    data = module(folder)
    state = data.state_dict()
    data.load_state_dict(state)
    with pytest.raises(UserError, match="trained on the classes circle, line"):
        data.load_state_dict({**state, "class_names": CLASSES[:2]})


# From folders, and from shards that others have written.


def photos(root: Path, splits: tuple[str, ...]) -> Path:
    for number in range(30):
        folder = root / splits[number % len(splits)] / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.PNG").write_bytes(png(number, colour=True))
    return root


@pytest.mark.parametrize("splits", [("train", "val", "test"), ("",)])
def test_folder_becomes_shards_by_one_command(tmp_path: Path, splits, capsys):
    source = photos(
        tmp_path / "photos", ("train", "train", "train", "val") if len(splits) > 1 else splits
    )
    assert main([str(source), str(tmp_path / "shards")]) == 0
    index = read_index(str(tmp_path / "shards"))
    assert index.class_names == CLASSES
    assert index.in_channels == 3
    assert "3 classes, train" in capsys.readouterr().out
    data = ready(tmp_path / "shards", "fit")
    assert len(data.train_set) + len(data.val_set) == 30


def test_bad_file_is_named_by_its_path_or_left_out(tmp_path: Path, capsys):
    source = photos(tmp_path / "photos", ("train",))
    bad = source / "train" / "line" / "1.PNG"
    bad.write_bytes(bad.read_bytes()[:100])
    assert main([str(source), str(tmp_path / "shards")]) == 2
    told = capsys.readouterr().err
    assert str(bad) in told
    assert "--on_error skip" in told
    write_folder(source, tmp_path / "shards", on_error="skip")
    assert f"1 of 30 images cannot be used, e.g. {bad}" in capsys.readouterr().out
    assert len(read_table(str(tmp_path / "shards"), "train")) == 29


def test_files_that_are_no_images_are_counted_and_dead_links_named(tmp_path: Path, capsys):
    source = photos(tmp_path / "photos", ("train",))
    (source / "train" / "line" / "notes.txt").touch()
    (source / "train" / "line" / "gone.png").symlink_to(tmp_path / "nowhere")
    write_folder(source, tmp_path / "shards", on_error="skip")
    told = capsys.readouterr().out
    assert "1 .txt" in told
    assert "1 of 31 images cannot be used" in told
    assert "gone.png: it links to a file that is gone" in told


def test_class_without_images_is_said(tmp_path: Path, capsys):
    write_shards(tmp_path, {"train": samples(6), "val": samples(2)}, CLASSES)
    assert "Warning: val has no image of class square" in capsys.readouterr().out


def tar(file: Path, members: dict[str, bytes]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def test_shards_of_others_are_indexed(tmp_path: Path):
    long = "a folder/" + "x" * 120
    tar(
        tmp_path / "pets-train-00.tar",
        {
            "./a.png": png(0),
            "./a.cls": b"dog\n",
            "./a.txt": b"a caption",
            "b.json": json.dumps({"label": "cat", "width": 8}).encode(),
            "b.png": png(1),
            "b.seg.png": b"not read",
            f"{long}.png": png(2),
            f"{long}.cls": b"dog",
        },
    )
    tar(tmp_path / "val" / "0.tar", {"0.png": png(3), "0.cls": b"cat"})
    index_shards(tmp_path)
    data = ready(tmp_path)
    assert data.class_names == ["cat", "dog"]
    assert data.train_set.__getitems__([0, 1, 2])[1].tolist() == [1, 0, 1]
    assert data.val_set.__getitems__([0])[1].tolist() == [0]
    assert str(data.train_set.file(2)) == f"pets-train-00.tar/{long}.png"


def test_numbers_as_labels_name_the_classes(tmp_path: Path):
    tar(tmp_path / "train.tar", {"0.png": png(0), "0.cls": b"2", "1.png": png(1), "1.cls": b"0"})
    index_shards(tmp_path)
    assert read_index(str(tmp_path)).class_names == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"0.png": png(0)}, r"train\.tar/0\.png: no label"),
        ({"0.png": png(0), "0.cls": b""}, r"0\.cls: no label"),
        ({"0.png": png(0), "0.json": b"{"}, r"0\.json"),
        ({"0.png": png(0), "0.json": b'{"caption": 1}'}, r"0\.json: no label"),
        ({"0.png": png(0), "0.jpg": png(0), "0.cls": b"0"}, "another image"),
        ({"0.png": b"", "0.cls": b"0"}, r"0\.png: the file is empty"),
        ({"0.txt": b"", "0.cls": b"0"}, "no image to train on"),
        ({"0.png": png(0), "0.cls": b"0", "1.png": png(1), "1.cls": b"x"}, "some are names"),
    ],
)
def test_what_is_wrong_in_an_archive_is_named(tmp_path: Path, members, message: str):
    tar(tmp_path / "train.tar", members)
    with pytest.raises(UserError, match=message):
        index_shards(tmp_path)


@pytest.mark.parametrize("keep", [700, 1024, 2048, 3072])
def test_archive_that_is_cut_off_is_refused(tmp_path: Path, keep: int):
    file = tar(
        tmp_path / "train.tar", {"0.png": png(0), "0.cls": b"0", "1.png": png(1), "1.cls": b"1"}
    )
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"train\.tar is no whole, uncompressed tar archive"):
        index_shards(tmp_path)


def test_compressed_archive_is_refused(tmp_path: Path):
    with tarfile.open(tmp_path / "train.tar", "w:gz"):
        pass
    with pytest.raises(UserError, match="uncompressed"):
        index_shards(tmp_path)


@pytest.mark.slow
def test_processes_index_the_same(folder: Path):
    names = ("index.json", "train.npy", "val.npy", "test.npy")
    before = [(folder / name).read_bytes() for name in names]
    index_shards(folder, CLASSES, processes=2)
    assert [(folder / name).read_bytes() for name in names] == before


# Over the network.


class Ranges(BaseHTTPRequestHandler):
    """A server of files and parts of them, as object stores are."""

    def __init__(self, root: Path, state: dict, *args):
        self.root, self.state = root, state
        super().__init__(*args)

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body: bool):
        file = self.root / self.path.lstrip("/")
        asked = self.headers.get("Range")
        self.state["requests"] = self.state.get("requests", 0) + bool(asked and body)
        fails = self.state.get("fails", 0) > 0
        if fails or not file.is_file():
            self.state["fails"] = self.state.get("fails", 0) - bool(fails)
            self.send_error(503 if fails else 404)
            return
        content = file.read_bytes()
        if asked and self.state.get("ranges", True):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
        else:
            part = content
            self.send_response(200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if body:
            self.wfile.write(part)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[str, dict]]:
    state: dict = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Ranges, folder, state)) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", state
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_shards_are_read_over_http(folder: Path, server, workers: int):
    url, state = server
    near = ready(folder, "fit", num_workers=workers).train_dataloader()
    far = ready(url, "fit", num_workers=workers).train_dataloader()
    for a, b in zip(near, far, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert state["requests"] == 48


def test_failed_request_is_made_again(server, monkeypatch: pytest.MonkeyPatch):
    url, state = server
    monkeypatch.setattr(shard_reader, "_PAUSES", (0, 0, 0))
    data = ready(url, "fit")
    state["fails"] = 3
    data.train_set.__getitems__([1, 2, 3])
    assert state["fails"] == 0
    state["fails"] = 1000
    with pytest.raises(UserError, match=r"train-000000\.tar cannot be read .*503"):
        data.train_set.__getitems__([1])


def test_server_that_refuses_is_named(server):
    url, state = server
    state["fails"] = 1000
    with pytest.raises(UserError, match=r"index\.json cannot be read: 503"):
        module(url)


def test_server_without_ranges_is_named(server):
    url, state = server
    data = ready(url, "fit")
    state["ranges"] = False
    with pytest.raises(UserError, match="knows no ranges"):
        data.train_set.__getitems__([1])


# In training.


class Counter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
        self.steps: list[tuple[int, float]] = []

    def training_step(self, batch, batch_idx):
        images, labels, index = batch
        self.steps.append((self.current_epoch, *index.tolist(), float(images.sum())))
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, batch_idx):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_stopped_run_goes_on_exactly(folder: Path, tmp_path: Path, trainer, workers: int):
    class Save(L.Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 17:
                trainer.save_checkpoint(tmp_path / "stop.ckpt")

    def fit(callbacks=None, ckpt=None) -> Counter:
        net = Counter()
        data = module(folder, num_workers=workers, shift=1)
        trainer(max_epochs=3, callbacks=callbacks, limit_val_batches=0).fit(
            net, datamodule=data, ckpt_path=ckpt, weights_only=True
        )
        return net

    whole = fit([Save()])
    assert fit(ckpt=tmp_path / "stop.ckpt").steps == whole.steps[17:]
    assert len(whole.steps) == 36


TWO = """
import json, sys
from pathlib import Path
import lightning as L
from torch import distributed
from project.data.shards import ShardsDataModule
from project.models import ConvNet
from project.tasks import ClassificationTask

class Watch(L.Callback):
    def __init__(self):
        self.train, self.val = [], []
    def on_train_batch_end(self, trainer, module, outputs, batch, *_):
        self.train.append(batch[2].tolist())
    def on_validation_batch_end(self, trainer, module, outputs, batch, *_):
        self.val += [i for i in batch[2].tolist() if i >= 0]

if __name__ == "__main__":
    processes = int(sys.argv[1])
    L.seed_everything(1)
    task, watch = ClassificationTask(ConvNet(1, 3, hidden_dim=4, dropout=0.0), 3), Watch()
    data = ShardsDataModule("shards", batch_size=8 // processes, num_workers=2, eval_batch_size=4)
    trainer = L.Trainer(accelerator="cpu", devices=processes, logger=False, max_epochs=2,
        strategy="ddp" if processes > 1 else "auto", enable_checkpointing=False,
        enable_progress_bar=False, num_sanity_val_steps=0, log_every_n_steps=1, callbacks=watch)
    [before] = trainer.validate(task, datamodule=data, verbose=False)
    first, watch.val = watch.val, []
    trainer.fit(task, datamodule=data)
    seen = {"train": watch.train, "val": first, "before": before}
    Path(f"{processes}-{trainer.global_rank}.json").write_text(json.dumps(seen))
    if distributed.is_initialized():
        distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_see_what_one_sees(folder: Path, tmp_path: Path):
    # 50 and 11 samples: neither divides by what two processes take.
    Path("run.py").write_text(TWO)
    for processes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "run.py", processes], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
    one, *two = (json.loads(Path(f"{name}.json").read_text()) for name in ("1-0", "2-0", "2-1"))
    assert len(one["train"]) == 12  # two epochs of 50 samples in batches of 8
    together = [sorted(a + b) for a, b in zip(*(rank["train"] for rank in two), strict=True)]
    assert together == [sorted(batch) for batch in one["train"]]
    assert sorted(two[0]["val"] + two[1]["val"]) == one["val"] == list(range(11))
    for rank in two:
        # Sums in another order: rounding of float32.
        assert rank["before"] == pytest.approx(one["before"], rel=1e-5)
