"""Tar archives of images with an index: written from a folder, or indexed where they are.

``python -m project.data.write_shards PHOTOS SHARDS`` writes ``PHOTOS/train/<class>/*`` and, where
they are, ``val`` and ``test``, or else ``PHOTOS/<class>/*``.

``python -m project.data.write_shards SHARDS`` indexes ``SHARDS/*train*.tar``,
``SHARDS/train/*.tar`` and likewise ``val`` and ``test``, written by any program in WebDataset's
convention: members that differ only in what follows the first dot of their file names are one
sample. Its label is in ``.cls``, or in ``.json`` under "label" or "cls", as a number or as the name
of the class.
"""

import argparse
import os
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from io import BytesIO
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, get_args

from project.data.reading.image_file import BadImage, read_bytes
from project.data.reading.shard_scan import Scan, judge, scan_archive, write_index
from project.listing import EXTENSIONS, class_folders, list_folder
from project.mistakes import UserError

SPLITS = ("train", "val", "test")
OnError = Literal["stop", "skip"]
# Images, as files or their bytes, with their labels.
Samples = Iterable[tuple[str | Path | bytes, int]]


def write_shards(
    target: str | Path,
    splits: Mapping[str, Samples],
    class_names: Sequence[str],
    shard_size: int = 2**28,
    on_error: OnError = "stop",
) -> None:
    """Write images into tar archives of a folder, and an index; every image is decoded once.

    Args:
        target: The folder. Archives of an earlier writing are replaced.
        splits: For each of ``train``, ``val`` and ``test`` that there is, images and labels, in any
            order: training has an order of its own.
        class_names: Name of every class, in the order of the labels.
        shard_size: Bytes after which a new archive is begun.
        on_error: Whether images that cannot be read end it, or are left out, up to 5 %.

    Raises:
        UserError: If an image cannot be read, or has a label without a class.
    """
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.json").unlink(missing_ok=True)  # until the new archives are all there
    scans: dict[str, list[Scan]] = {}
    for split, samples in splits.items():
        for old in folder.glob(f"{split}-[0-9]*.tar"):
            old.unlink()
        scans[split] = _write_split(folder, split, samples, shard_size)
    judge(scans, on_error)
    write_index(folder, scans, class_names)


def write_folder(
    source: str | Path, target: str | Path, on_error: OnError = "stop", shard_size: int = 2**28
) -> None:
    """Write the images of a folder with a folder for every class, of each split or of all.

    Args:
        source: The folder.
        target: Where the archives go.
        on_error: Whether images that cannot be read end it, or are left out, up to 5 %.
        shard_size: Bytes after which a new archive is begun.

    Raises:
        UserError: If there are no images, or one cannot be read.
    """
    root = Path(source)
    if not root.is_dir():
        raise UserError(f"{root} is no folder")
    folders = {split: root / split for split in SPLITS if (root / split).is_dir()}
    folders = folders if "train" in folders else {"train": root}
    class_names = class_folders(folders["train"])
    strange = {n for f in folders.values() for n in class_folders(f)} - set(class_names)
    if strange or not class_names:
        what = f"classes that training lacks: {', '.join(sorted(strange))}"
        raise UserError(f"{root} has {what if strange else 'no folder for any class'}")
    write_shards(
        target,
        {split: _listed(folder, class_names) for split, folder in folders.items()},
        class_names,
        shard_size,
        on_error,
    )


def index_shards(
    target: str | Path,
    class_names: Sequence[str] | None = None,
    on_error: OnError = "stop",
    processes: int = 1,
) -> None:
    """Write the index of the tar archives in a folder; every image is decoded once.

    Args:
        target: The folder.
        class_names: Name of every class, in the order of the labels; by default the names that the
            labels are, in the order of the alphabet, or the numbers that they are.
        on_error: Whether images that cannot be read end it, or are left out, up to 5 %.
        processes: Archives that are read at the same time.

    Raises:
        UserError: If there is nothing to index, or what is there is wrong.
    """
    folder = Path(target)
    found = {split: _archives(folder, split) for split in SPLITS}
    names = [name for split in found.values() for name in split]
    if not found["train"]:
        raise UserError(f"{folder} has no archives to train on, such as train-000000.tar")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"{folder / twice} has the names of two splits: rename it.")
    scanned = dict(zip(names, _scan_all(folder, names, processes), strict=True))
    scans = {split: [scanned[name] for name in part] for split, part in found.items() if part}
    judge(scans, on_error)
    write_index(folder, scans, class_names)


def _listed(folder: Path, class_names: Sequence[str]) -> Samples:
    listing = list_folder(folder, class_names)
    if listing.left_out:
        found = ", ".join(f"{count:,} {kind}" for kind, count in listing.left_out.items())
        print(f"{folder}: left out, because they are no image files: {found}")
    labels: list[int] = listing.labels.tolist()
    good = ((folder / path, label) for path, label in zip(listing.paths, labels, strict=True))
    # Those cannot be read, which is said together with the others of which that is true.
    return chain(good, ((folder / path, -1) for path, _ in listing.bad))


def _write_split(folder: Path, split: str, samples: Samples, shard_size: int) -> list[Scan]:
    scans: list[Scan] = []
    left, number = iter(samples), 0
    sample = next(left, None)
    while sample is not None:
        scan = Scan(f"{split}-{len(scans):06d}.tar")
        # USTAR and no times: the same images make the same bytes.
        with tarfile.open(folder / scan.name, "w", format=tarfile.USTAR_FORMAT) as archive:
            while sample is not None and archive.offset < shard_size:
                _write_sample(archive, scan, f"{number:09d}", *sample)
                sample, number = next(left, None), number + 1
        scan.size = (folder / scan.name).stat().st_size
        scans.append(scan)
    return scans


def _write_sample(
    archive: tarfile.TarFile, scan: Scan, key: str, image: str | Path | bytes, label: int
) -> None:
    source = f"image {int(key)}" if isinstance(image, bytes) else str(image)
    try:
        content = image if isinstance(image, bytes) else read_bytes(image)
        row = scan.look_at(content)
    except BadImage as error:
        scan.bad.append((source, str(error)))
        return
    kind = "img" if isinstance(image, bytes) else Path(image).suffix.lower()[1:]
    if f".{kind}" not in EXTENSIONS:
        kind = "png" if content.startswith(b"\x89PNG") else "jpg"
    _add(archive, f"{key}.{kind}", content)
    padded = -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    scan.rows.append((archive.offset - padded, *row))
    scan.labels.append(label)
    _add(archive, f"{key}.cls", str(label).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, BytesIO(content))


def _archives(folder: Path, split: str) -> list[str]:
    found = [*folder.glob(f"*{split}*.tar"), *folder.glob(f"{split}/*.tar")]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _scan_all(folder: Path, names: list[str], processes: int) -> list[Scan]:
    scan = partial(scan_archive, folder)
    if processes == 1:
        return [scan(name) for name in names]
    # Not forked: whatever threads there are would not be forked with it.
    with ProcessPoolExecutor(min(processes, len(names)), get_context("spawn")) as pool:
        try:
            return list(pool.map(scan, names))
        except BrokenProcessPool as error:
            raise UserError(
                f"{folder}: a process that decoded images was killed (out of memory?) or crashed.\n"
                "Index with --processes 1."
            ) from error


def main(args: Sequence[str] | None = None) -> int:
    """Write or index shards from the command line; return the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        "python -m project.data.write_shards",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("folders", nargs="+", metavar="[PHOTOS] SHARDS")
    parser.add_argument("--on_error", choices=get_args(OnError), default="stop")
    parser.add_argument("--shard_size", type=int, default=2**28, help="bytes, when writing")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="when indexing")
    given = parser.parse_args(args)
    if len(given.folders) > 2:
        parser.error("at most two folders")
    *photos, shards = given.folders
    try:
        if photos:
            write_folder(photos[0], shards, given.on_error, given.shard_size)
        else:
            index_shards(shards, on_error=given.on_error, processes=given.processes)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
