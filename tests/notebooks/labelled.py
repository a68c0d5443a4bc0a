"""Looks at every figure that a notebook shows: do its axes say what they are?"""

from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

found: list[str] = []


def missing(axes: Axes) -> list[str]:
    """List the axes, x or y, that have no label."""
    if not axes.has_data():
        return []
    if not axes.axison:  # fine for a picture, not for a plot
        return ["axes, which are off"] if axes.lines or axes.collections else []
    figure = axes.get_figure(root=True)
    wide = axes.get_shared_x_axes().get_siblings(axes)
    high = axes.get_shared_y_axes().get_siblings(axes)
    has = {
        "x": figure.get_supxlabel() or any(other.get_xlabel() for other in wide),
        "y": figure.get_supylabel() or any(other.get_ylabel() for other in high),
    }
    if axes.get_label() == "<colorbar>":
        return [] if any(has.values()) else ["label of a colour bar"]
    return [name for name in has if not has[name]]


def look(figure: Figure) -> None:
    """Note which labels a figure lacks."""
    for axes in figure.axes:
        found.extend(f"{axes.get_title() or 'axes'}: no label of {name}" for name in missing(axes))


def watch() -> None:
    """Look at every figure from now on, when it is drawn: a notebook closes it after that."""
    draw = FigureCanvasBase.print_figure

    def look_and_draw(self, *args, **kwargs):
        look(self.figure)
        return draw(self, *args, **kwargs)

    FigureCanvasBase.print_figure = look_and_draw
