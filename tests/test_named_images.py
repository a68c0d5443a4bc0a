"""Files, folders, patterns and tables are the names of images."""

from pathlib import Path

import pytest

from project.mistakes import UserError
from project.named_images import find_images, names_among


@pytest.fixture(autouse=True)
def files(workdir: Path) -> None:
    for name in ("b/2.png", "b/1.JPG", "b/c/3.gif", "b/.hidden.png", "b/notes.txt", "a.png"):
        (workdir / name).parent.mkdir(parents=True, exist_ok=True)
        (workdir / name).write_text("")


def found(*names: str) -> list[str]:
    return list(find_images(names).paths)


def test_names_stand_for_images_in_the_order_given() -> None:
    assert found("b", "a.png", "a.png") == ["b/1.JPG", "b/2.png", "b/c/3.gif", "a.png", "a.png"]


def test_patterns_take_images_only() -> None:
    assert found("b/*") == ["b/1.JPG", "b/2.png"]
    assert found("**/*.[pg][ni][gf]") == ["a.png", "b/2.png", "b/c/3.gif"]


def test_a_file_is_taken_whatever_it_is_called() -> None:
    assert found("b/notes.txt") == ["b/notes.txt"]  # what it is, reading it says


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("path,label\n2.png,x\n\nc/3.gif,y\n", ["b/2.png", "b/c/3.gif"]),
        ("\ufefflabel;Path\nx;2.png\n", ["b/2.png"]),
        ("2.png\n1.JPG\n", ["b/2.png", "b/1.JPG"]),
        ("path\n/abs/x.png\n", ["/abs/x.png"]),
        ("\n  \npath;label\n2.png;0\n;;\n", ["b/2.png"]),
    ],
)
def test_a_table_names_images_relative_to_itself(text: str, paths: list[str]) -> None:
    Path("b/list.csv").write_text(text)
    assert found("b/list.csv") == paths


def test_a_line_of_a_table_without_a_path_is_an_image_that_cannot_be_read() -> None:
    Path("list.csv").write_text("label,path\n0,a.png\n1\n2,\n3,a.png\n")
    named = find_images(["list.csv"])
    assert list(named.paths) == ["a.png", "", "", "a.png"]
    assert "no path" in named.reasons[""]


def test_a_link_that_leads_nowhere_is_an_image_that_cannot_be_read() -> None:
    Path("b/c/gone.png").symlink_to("nowhere")
    named = find_images(["b/c"])
    assert list(named.paths) == ["b/c/3.gif", "b/c/gone.png"]
    assert "does not exist" in named.reasons["b/c/gone.png"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.pgn", r"There is no file or folder a\.pgn\. Did you mean a\.png\?"),
        ("emtpy/", r"There is no file or folder emtpy/\. Did you mean empty\?"),
        ("x/*.png", r"x/\*\.png matches no image\.\n"),
        ("empty", r"empty is a folder without images\.\n"),
        ("empty.csv", r"empty\.csv is a table without a line\.\n"),
        ("blank.csv", "is a table without a line"),
        ("wrong.csv", "has no column path, it has name, label"),
        ("header.csv", "is a table without a line"),
    ],
)
def test_a_name_that_stands_for_nothing_is_a_mistake(name: str, said: str) -> None:
    Path("empty").mkdir()
    Path("empty.csv").write_text("")
    Path("blank.csv").write_text("\n\n")
    Path("wrong.csv").write_text("name,label\n1,2\n")
    Path("header.csv").write_text("path\n")
    with pytest.raises(UserError, match=said) as raised:
        found(name)
    assert len(str(raised.value).splitlines()) <= 3


def test_names_are_told_from_the_values_of_settings() -> None:
    line = ["x.png", "--data.batch_size", "8", "y", "--a=b", "z.csv", "--print_config", "--t", "1"]
    settings = ["--data.batch_size", "8", "--a=b", "--print_config", "--t", "1"]
    assert names_among(line) == (["x.png", "y", "z.csv"], settings)
    assert names_among(["--t", "1", "--", "-x.png"]) == (["-x.png"], ["--t", "1"])
