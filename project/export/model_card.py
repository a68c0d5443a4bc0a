"""``MODEL_CARD.md`` of a run: what it is, how good, made how, and how to load it."""

import os
import re
from datetime import datetime
from pathlib import Path

from project.confusion import draw_confusion_matrix
from project.disk import COPY, writing
from project.export.card_text import PICTURE, CardText
from project.export.evaluation import evaluate
from project.export.seen import look
from project.mistakes import UserError
from project.runs import LoadedRun

CARD = "MODEL_CARD.md"
_BEGIN = "<!-- notes: yours; the next export keeps what stands from here to the end of notes -->"
_END = "<!-- end of notes: all the rest is made anew -->"
_NOTES = f"""{_BEGIN}
## Notes

Not yet written: what it is meant for and what not, where the images come from and under which
licence, whom its mistakes affect.
{_END}"""
_KEPT = re.compile(r"<!-- notes:.*?<!-- end of notes[^>]*-->", re.DOTALL)


def write_model_card(loaded: LoadedRun, exported: Path | None = None) -> Path:
    """Evaluate a run's checkpoint and write ``MODEL_CARD.md`` and its picture into the run.

    Args:
        loaded: The run.
        exported: A file made of it by ``lightning export``, which the card then describes, too.

    Returns:
        The card.

    Raises:
        UserError: If there is a card without the section of notes, which somebody has written.
    """
    file = loaded.run.path / CARD
    notes = _notes(file)
    found = evaluate(loaded)
    text = CardText(loaded, found, look(loaded), exported)
    made = f"Made by `lightning export` on {datetime.now().astimezone():%Y-%m-%d}."
    lines = [*text.title(), "", made, "", notes, "", *text.sections()]
    with writing(file, COPY):
        if found.counts is not None:
            picture = draw_confusion_matrix(found.counts, text.class_names)
            draft = _draft(loaded.run.path / PICTURE)
            picture.save(draft, format="PNG")
            os.replace(draft, loaded.run.path / PICTURE)
        draft = _draft(file)
        draft.write_text("\n".join(lines).rstrip() + "\n", "utf-8")
        os.replace(draft, file)
    return file


def _notes(file: Path) -> str:
    """Return the user's section of an earlier card, or one to be filled in."""
    if not file.exists():
        return _NOTES
    if kept := _KEPT.search(file.read_text("utf-8")):
        return kept[0]
    raise UserError(
        f"{file} has no section of notes, so it would be lost as a whole.\n"
        "Move it away; the new card has a section that is kept."
    )


def _draft(file: Path) -> Path:
    return file.with_name(f".{file.name}.{os.getpid()}")
