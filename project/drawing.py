"""What pictures with text in them share: two colours, a font, text that fits."""

from functools import cache

from PIL import Image, ImageDraw, ImageFont

Color = tuple[int, int, int]
BLACK: Color = (20, 20, 20)
WHITE: Color = (255, 255, 255)


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """PIL's built-in font, so that no font file is needed; ``size`` in pixels."""
    return ImageFont.load_default(size)


def fit_text(text: str, width: float, size: int) -> str:
    """``text``, shortened in the middle to ``width`` px: long names often differ at the end."""
    face = font(size)
    if face.getlength(text) <= width:
        return text
    for kept in range(len(text) - 1, 0, -1):
        head, tail = (kept + 1) // 2, kept // 2
        short = text[:head] + "…" + text[len(text) - tail :]
        if face.getlength(short) <= width:
            return short
    return "…"


def upright_text(text: str, size: int, color: Color = BLACK) -> Image.Image:
    """A picture of ``text`` on white that reads upwards, for the head of a narrow column."""
    width, height = int(font(size).getlength(text)) + 2, size + 4
    flat = Image.new("RGB", (width, height), WHITE)
    ImageDraw.Draw(flat).text((1, height // 2), text, color, font(size), anchor="lm")
    return flat.rotate(90, expand=True)
