"""Which image files there are, in tables of numbers: a million paths, and no Python object for any.

Worker processes share the memory of such tables. Strings they would copy, one after the other, as
each of them counts its references.
"""

import os
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".tif", ".tiff"),
    *(".webp", ".bmp", ".ppm", ".pgm", ".pbm", ".pnm"),
)
# What file managers and disk stations leave behind; the last holds small copies of all images.
_JUNK = frozenset(("thumbs.db", "desktop.ini", "__macosx", "@eadir"))
OUTSIDE = "images outside of the class folders"
NO_EXTENSION = "without extension"


class PathTable(Sequence[str]):
    """Paths in one block of bytes: 8 bytes a path on top of its own, shared by forked processes.

    Args:
        blob: The bytes of all paths, one after the other, uint8 ``(total,)``.
        ends: Where each path ends in ``blob``, int64 ``(N,)``.
    """

    def __init__(self, blob: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> None:
        self.blob, self.ends = blob, ends

    @classmethod
    def of(cls, paths: Iterable[str]) -> "PathTable":
        """Make a table of paths; names that are no UTF-8 come out as they went in."""
        blob, ends = bytearray(), array("q")
        for path in paths:
            blob += os.fsencode(path)
            ends.append(len(blob))
        return cls(np.frombuffer(blob, np.uint8), np.frombuffer(ends, np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return os.fsdecode(self.raw(index))

    def raw(self, index: int) -> bytes:
        """Return a path as bytes."""
        index = range(len(self.ends))[index]
        start = self.ends[index - 1] if index else 0
        return self.blob[start : self.ends[index]].tobytes()

    @property
    def nbytes(self) -> int:
        """Memory of the table, in bytes."""
        return self.blob.nbytes + self.ends.nbytes


@dataclass(frozen=True)
class Listing:
    """Files that look like images, by their names.

    Args:
        paths: Relative to the folder that was listed, in an order that depends on the names only.
        labels: Class of each, int32 ``(N,)``.
        bad: Paths that lead nowhere or cannot be looked into, with the reason.
        left_out: How many files have another extension, by extension, e.g. ``{".txt": 2}``;
            ``NO_EXTENSION`` and ``OUTSIDE`` are such keys too.
    """

    paths: PathTable
    labels: npt.NDArray[np.int32]
    bad: list[tuple[str, str]]
    left_out: dict[str, int]


def class_folders(folder: str | Path) -> list[str]:
    """Return the sorted names of the folders in a folder, without hidden ones and the like.

    Raises:
        OSError: If the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if not is_junk(e.name) and os.path.isdir(e.path))


def list_folder(folder: str | Path, class_names: Sequence[str] | None = None) -> Listing:
    """List the image files below a folder, in the order of the classes and of the names.

    Links are followed, but a real folder is listed once only. Names that begin with a dot, and what
    file managers leave behind, are no data and not mentioned. Extensions count in any case.

    Args:
        folder: Holds a folder for every class, or lacks it if there are no images of the class.
        class_names: Names of these folders; their places in this list are the labels. Without, all
            images below ``folder`` are listed, with label -1.
    """
    walk = _Walk(os.fspath(folder))
    if class_names is None:
        walk.descend("", -1)
    else:
        walk.count_outside()
        for label, name in enumerate(class_names):
            walk.descend(name, label)
    return walk.listing()


def is_junk(name: str) -> bool:
    """Whether a file or folder is no data: hidden, or left behind by a file manager."""
    return name[0] == "." or name.lower() in _JUNK


def extension(name: str) -> str:
    """Return the extension of a file name in lower case, with its dot."""
    return os.path.splitext(name)[1].lower()


@dataclass
class _Walk:
    """A listing in the making.

    Args:
        root: The folder.
    """

    root: str
    blob: bytearray = field(default_factory=bytearray)
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    labels: "array[int]" = field(default_factory=lambda: array("i"))
    bad: list[tuple[str, str]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    # Device and inode of every folder seen, with its path and label.
    seen: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)

    def descend(self, top: str, label: int) -> None:
        """List all below the folder ``top``; what is linked comes last, so that it is not first."""
        real, linked = [top], deque[str]()
        while real or linked:
            path = real.pop() if real else linked.popleft()
            try:
                if self._is_new(path, label):
                    folders, links = self._scan(path, label)
                    real += reversed(folders)
                    linked += links
            except FileNotFoundError:
                if path != top:  # else no image of this class
                    self.bad.append((path, "it is gone since the folder was listed"))
            except OSError as error:
                self.bad.append((path, f"this folder cannot be read: {_words(error)}"))

    def _is_new(self, path: str, label: int) -> bool:
        """Whether a folder is met for the first time; a second class has no right to it."""
        status = os.stat(os.path.join(self.root, path))
        first, owner = self.seen.setdefault((status.st_dev, status.st_ino), (path, label))
        if owner != label:
            self.bad.append((path, f"this folder is also {first}, of another class"))
        return (first, owner) == (path, label)

    def _scan(self, path: str, label: int) -> tuple[list[str], list[str]]:
        """Note the images of one folder; return its folders, real ones and links."""
        prefix = f"{path}/" if path else ""
        files: list[str] = []
        folders: list[str] = []
        links: list[str] = []
        with os.scandir(os.path.join(self.root, path)) as entries:
            for entry in entries:
                if is_junk(entry.name):
                    continue
                if _is_folder(entry):
                    (links if entry.is_symlink() else folders).append(prefix + entry.name)
                elif (reason := self._flaw(entry)) is not None:
                    self.bad.append((prefix + entry.name, reason))
                elif self._is_image(entry.name):
                    files.append(entry.name)
        names = [os.fsencode(prefix + name) for name in sorted(files)]
        ends = accumulate(map(len, names), initial=len(self.blob))
        self.ends.extend(islice(ends, 1, None))  # the first is where they start
        self.blob += b"".join(names)
        self.labels.extend([label] * len(names))
        return sorted(folders), sorted(links)

    def _is_image(self, name: str) -> bool:
        kind = extension(name)
        if kind not in EXTENSIONS:
            self.left_out[kind or NO_EXTENSION] += 1
        return kind in EXTENSIONS

    def _flaw(self, entry: "os.DirEntry[str]") -> str | None:
        """Say why an entry that is no folder cannot be an image, if its name does not tell."""
        if entry.is_file(follow_symlinks=False):
            return None
        try:
            regular = entry.is_file()
        except OSError as error:
            return f"it is a link that leads nowhere: {_words(error)}"
        if regular or (not entry.is_symlink() and extension(entry.name) not in EXTENSIONS):
            return None
        if entry.is_symlink() and not os.path.exists(entry.path):
            return f"it links to {os.readlink(entry.path)}, which does not exist"
        return "it is no ordinary file"

    def count_outside(self) -> None:
        """Count the images beside the class folders, which have no class."""
        with os.scandir(self.root) as entries:
            names = [e.name for e in entries if not is_junk(e.name) and not _is_folder(e)]
        images = sum(extension(name) in EXTENSIONS for name in names)
        self.left_out.update({OUTSIDE: images} if images else {})

    def listing(self) -> Listing:
        """Return what was found."""
        paths = PathTable(np.frombuffer(self.blob, np.uint8), np.frombuffer(self.ends, np.int64))
        labels = np.frombuffer(self.labels, np.int32)
        return Listing(paths, labels, sorted(self.bad), dict(sorted(self.left_out.items())))


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or through a folder that may not be entered
        return False


def _words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
