"""Tables of images: separators, headers, labels, splits, and the line that is wrong."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from picture_folders import write

from project.data import ImageCSVDataModule
from project.mistakes import UserError

CLASSES = ["cat", "dog"]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twenty pictures img/000.png to img/019.png; odd ones are dogs."""
    return write(tmp_path, {"img": 20})


def lines(labels: list[str] | None = None, separator: str = ",") -> list[str]:
    labels = labels or CLASSES
    return [f"img/{i:03d}.png{separator}{labels[i % len(labels)]}" for i in range(20)]


def table(folder: Path, text: str | list[str] | bytes, **kwargs) -> ImageCSVDataModule:
    text = "\n".join(text) if isinstance(text, list) else text
    (folder / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return ImageCSVDataModule(str(folder / "t.csv"), **kwargs)


def labels_of(data: ImageCSVDataModule) -> dict[str, str]:
    """The class of every file, whichever split it is in."""
    data.setup()
    found = {}
    for split in ("train", "val", "test"):
        source = data.splits.source(split)
        for row in data.splits.rows[split].tolist():
            found[source.paths[row]] = data.class_names[int(source.labels[row])]
    return found


RIGHT = {f"img/{i:03d}.png": CLASSES[i % 2] for i in range(20)}


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(lines()),
        "path,label\n" + "\n".join(lines()),
        "Path;Label\n" + "\n".join(lines(separator=";")),
        "path\tlabel\n" + "\n".join(lines(separator="\t")),
        "label,width,path\n" + "\n".join(f"{x.split(',')[1]},8,{x.split(',')[0]}" for x in lines()),
        "\ufeffpath,label\r\n" + "\r\n".join(lines()) + "\r\n\r\n",
        "path, label\n" + "\n".join(f' "{x.split(",")[0]}" ,  {x.split(",")[1]} ' for x in lines()),
        "\n".join(f"./img//{x[4:]}" for x in lines()),
    ],
    ids=["bare", "header", "semicolons", "tabs", "further", "bom_crlf", "quotes_spaces", "dots"],
)
def test_a_table_is_read_however_it_is_written(pictures: Path, text: str) -> None:
    assert labels_of(table(pictures, text)) == RIGHT


def test_columns_are_taken_by_the_names_that_are_given(pictures: Path) -> None:
    text = ["file,kind,label", *(f"{line},x" for line in lines())]
    data = table(pictures, text, path_column="file", label_column="kind")
    assert labels_of(data) == RIGHT


def test_paths_are_relative_to_image_dir_or_absolute(pictures: Path) -> None:
    text = [line.removeprefix("img/") for line in lines()]
    text[3] = f"{pictures}/img/{text[3]}"
    found = labels_of(table(pictures, text, image_dir=str(pictures / "img")))
    assert len(found) == 20


def test_a_name_with_a_comma_is_quoted(pictures: Path) -> None:
    (pictures / "img" / "000.png").rename(pictures / "img" / "a, b.png")
    text = lines()
    text[0] = '"img/a, b.png",cat'
    assert labels_of(table(pictures, text))["img/a, b.png"] == "cat"


def test_whole_numbers_are_sorted_by_value(pictures: Path) -> None:
    numbers = [str(i) for i in range(11)]
    data = table(pictures, [f"img/{i:03d}.png,{i % 11}" for i in range(20)])
    assert data.class_names == numbers
    assert data.list_files("all").labels.tolist()[9:12] == [9, 10, 0]


def test_whole_numbers_that_became_floats_are_classes(pictures: Path) -> None:
    assert table(pictures, lines(["0.0", "1.0"])).class_names == ["0", "1"]


def test_numbers_get_the_names_that_are_given(pictures: Path) -> None:
    assert labels_of(table(pictures, lines(["0", "1"]), class_names=CLASSES)) == RIGHT


def test_none_may_be_a_class(pictures: Path) -> None:
    assert table(pictures, lines(["none", "crack"])).class_names == ["crack", "none"]


def test_a_split_column_is_followed(pictures: Path) -> None:
    parts = ["train"] * 12 + ["valid"] * 3 + ["TEST"] * 5
    text = [f"{line},{part}" for line, part in zip(lines(), parts, strict=True)]
    for head in ([], ["path,label,split"]):
        data = table(pictures, head + text)
        data.setup()
        assert [len(s) for s in (data.train_set, data.val_set, data.test_set)] == [12, 3, 5]  # type: ignore[arg-type]


def test_without_test_lines_there_is_no_test(pictures: Path) -> None:
    text = [f"{line},train" for line in lines()]
    data = table(pictures, ["path,label,split", *text])
    assert not data.has_test
    data.setup("fit")
    assert data.val_set is not None
    assert len(data.val_set) == 2


@pytest.mark.parametrize(
    ("place", "line", "said"),
    [
        (4, "img/004.png,", "line 5 (img/004.png): the label is missing (empty)"),
        (4, "img/004.png,NaN", "line 5 (img/004.png): the label is missing (NaN)"),
        (4, "img/004.png", "line 5 (img/004.png): 1 cells, the first line has 2"),
        (4, "img/0,04.png,cat", "line 5 (img/0): 3 cells, the first line has 2"),
        (4, ",cat", "line 5: the path is missing"),
        (4, "img/gone.png,cat", "line 5: "),
    ],
)
def test_a_line_that_cannot_be_used_is_named(
    pictures: Path, place: int, line: str, said: str
) -> None:
    text = lines()
    text[place] = line
    with pytest.raises(UserError, match=r"1 of 20 files cannot be used") as told:
        table(pictures, text).setup("fit")
    assert said in str(told.value)


def test_a_missing_file_is_named_with_its_line(pictures: Path) -> None:
    text = [*lines(), "img/gone.png,cat"]
    with pytest.raises(UserError, match=r"line 21: .*img/gone\.png: no such file"):
        table(pictures, text).setup("fit")


def test_a_label_out_of_range_is_named(pictures: Path) -> None:
    text = lines(["0", "1"])
    text[6] = "img/006.png,2"
    with pytest.raises(UserError, match=r"line 7 \(img/006\.png\): the label '2' is none of the"):
        table(pictures, text, class_names=CLASSES).setup("fit")


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["0", "1", "99"], r"go from 0 to 99 without 2, 3, 4, 5, 6 \(line 3 has 99\)"),
        (["0", "1", "-1"], r"go from -1 to 1 \(line 3 has -1\)"),
        (["1", "2"], r"go from 1 to 2 without 0"),
        (["0", "1", "9" * 17], r"go from 0 to 9+ without 2, 3, 4, 5, 6 \(line 3 has"),
        (["0", "1", "9" * 400], r"line 3: the label 9{40} is no class"),
        (["0", "1", "9" * 5000], r"line 3: the label 9{40} is no class"),
        (["0.5", "1.5"], r"line 1: the label 0.5 is no class"),
        (["cat"], r"has only the label cat to train on"),
    ],
)
def test_labels_that_are_no_classes_are_refused(
    pictures: Path, labels: list[str], said: str
) -> None:
    with pytest.raises(UserError, match=said) as told:
        table(pictures, lines(labels))
    assert len(str(told.value).splitlines()) <= 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,cat,dog\nimg/000.png,0,1", "has no column label; it has path, cat, dog"),
        (
            "image_id,species\nimg/000.png,cat",
            "has no column path and label; it has image_id, spec",
        ),
        ("img/000.png,0,1\nimg/001.png,1,0", "has 3 columns and no header"),
        ("img/000.png\nimg/001.png", "no line with a path and a label"),
        ("", "no line with a path and a label"),
        (b"img/000.png,\xe9t\xe9\n", "is no UTF-8"),
    ],
)
def test_what_is_no_table_of_labels_is_refused(
    pictures: Path, text: str | bytes, said: str
) -> None:
    with pytest.raises(UserError, match=said) as told:
        table(pictures, text)
    assert len(str(told.value).splitlines()) <= 3


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.csv cannot be read: no such file"):
        ImageCSVDataModule(str(tmp_path / "gone.csv"))


def test_a_column_that_is_asked_for_must_be_there(pictures: Path) -> None:
    with pytest.raises(UserError, match="has no column fold; it has path, label"):
        table(pictures, ["path,label", *lines()], split_column="fold")


def test_the_same_line_twice_counts_once_and_is_said(
    pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert labels_of(table(pictures, [*lines(), "./img/003.png,dog"])) == RIGHT
    assert "1 lines of" in capsys.readouterr().out


def test_a_file_with_two_labels_is_refused(pictures: Path) -> None:
    with pytest.raises(UserError, match=r"lines 4 and 21 both have img/003\.png"):
        table(pictures, [*lines(), "img/003.png,cat"])


def test_a_label_that_training_lacks_is_refused(pictures: Path) -> None:
    text = [f"{line},{'val' if i > 15 else 'train'}" for i, line in enumerate(lines())]
    text[17] = "img/017.png,bird,val"
    with pytest.raises(UserError, match=r"line 18 \(img/017\.png\): the label 'bird' is none of"):
        table(pictures, text).setup("fit")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("path,label\n", r"t\.csv has no line that can be used\."),
        (
            'path,label\n"img/000.png,cat\nimg/001.png,dog\n',
            r"used\.\n.*csv, line 3 \(.*\): 1 cells",
        ),
    ],
)
def test_a_table_without_a_line_to_use_says_why(pictures: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as told:
        table(pictures, text)
    assert len(str(told.value).splitlines()) <= 3


def test_where_all_files_are_missing_their_folder_is_asked_for(pictures: Path) -> None:
    with pytest.raises(UserError, match=r"e\.g\. .*imgs/img/000\.png\. Did you mean img\?") as told:
        table(pictures, lines(), image_dir=str(pictures / "imgs"))
    assert "--data.image_dir" in str(told.value)


def test_the_column_that_may_be_meant_is_in_the_answer(pictures: Path) -> None:
    with pytest.raises(
        UserError, match=r"Set --data\.path_column photo and --data\.label_column tree"
    ):
        table(pictures, ["photo,tree", *lines()])
    with pytest.raises(UserError, match=r"Set --data\.label_column species\."):
        table(pictures, ["path,species", *lines()])


def test_a_near_name_is_proposed_for_a_table_that_is_not_there(pictures: Path) -> None:
    table(pictures, lines())
    with pytest.raises(UserError, match=r"no such file or directory\. Did you mean t\.csv\?"):
        ImageCSVDataModule(str(pictures / "tt.csv"))
