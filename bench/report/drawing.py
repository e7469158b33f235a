"""Draws figures with matplotlib for a column or a page of a paper, to be read by the colour-blind and in gray print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.contract import Missing
from bench.report.figures import Figure, Heat, Panel, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

FORMATS = ("png", "pdf", "svg")
COLUMN, PAGE = 3.5, 7.2
"""Widths in inches: of one column, and of a page of two."""
HEIGHT = 2.6
IN_A_ROW = 3
TICKS = 8
"""The most names along an axis of a heat map."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's, which differ under every kind of colour-blindness; the brightest last."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

SETTINGS: dict[Any, Any] = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "legend.fontsize": 7, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "lines.linewidth": 1.2, "lines.markersize": 3.5, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5, "savefig.dpi": 300,
    "pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "linrec-bench", "legend.frameon": False,
}  # fmt: skip
"""TrueType in PDF, as publishers want it; a fixed salt, so that the same numbers give the same SVG."""


def write(figures: list[Figure], folder: Path, formats: list[str]) -> list[Path]:
    """Draws all figures into the folder; the files. `Missing` where matplotlib is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise Missing('matplotlib is not installed: pip install "linrec-bench[plots]"') from error
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    with matplotlib.rc_context(SETTINGS):
        for figure in figures:
            drawing = draw(figure)
            for kind in formats:
                path = folder / f"{figure.name}.{kind}"
                stamp: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
                drawing.savefig(path, metadata=stamp)
                found.append(path)
    return found


def draw(figure: Figure) -> Drawing:
    """The figure: one panel in a column's width, more side by side over a page."""
    from matplotlib.figure import Figure as Drawing

    count = len(figure.panels)
    columns = min(count, IN_A_ROW)
    rows = -(-count // columns)
    drawing = Drawing(figsize=(COLUMN if count == 1 else PAGE, HEIGHT * rows), layout="constrained")
    axes = drawing.subplots(rows, columns, squeeze=False).ravel()
    looks = looks_of(figure)
    heats = [panel for panel in figure.panels if isinstance(panel, Heat)]
    for ax, panel in zip(axes, figure.panels, strict=False):
        ax.set(title=_plain(panel.title), xlabel=_plain(panel.x_label), ylabel=_plain(panel.y_label))
        if isinstance(panel, Heat):
            mesh = _heat(ax, panel, heats)
            if panel is heats[-1]:
                drawing.colorbar(mesh, ax=list(axes), label=_plain(panel.value_label))
        else:
            _lines(ax, panel, looks)
    for ax in axes[count:]:
        ax.set_axis_off()
    _legend(drawing, looks, 4 if count > 1 else 2)
    drawing.suptitle(_plain(figure.title), fontsize=9)
    return drawing


def looks_of(figure: Figure) -> dict[str, int]:
    """The number of the colour, dash and marker of each name of a figure, in the order in which names first come."""
    names = [series.name for panel in figure.panels if isinstance(panel, Panel) for series in panel.series]
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def _plain(text: str) -> str:
    """Names are text: nothing in them is a formula."""
    return text.replace("$", r"\$")


def _legend(drawing: Drawing, looks: dict[str, int], columns: int) -> None:
    """One for all panels, in the order in which names first come."""
    handles: dict[str, Any] = {}
    for ax in drawing.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(label), handle)
    labels = [_plain(name) for name in looks if _plain(name) in handles]
    if labels:
        ncols = min(len(labels), columns)
        drawing.legend([handles[label] for label in labels], labels, loc="outside lower center", ncols=ncols)


def _lines(ax: Axes, panel: Panel, looks: dict[str, int]) -> None:
    if panel.log_x:
        ax.set_xscale("log")
    if panel.log_y:
        ax.set_yscale("log")
    measured = {series.name for series in panel.series if series.style == "points"}
    for series in panel.series:
        i = looks[series.name]
        x, y = np.asarray(series.x, float), np.asarray(series.y, float)
        look: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "label": _plain(series.name)}
        dashes = DASHES[i % len(DASHES)]
        if series.style == "points":
            marker = MARKERS[i % len(MARKERS)]
            ax.errorbar(
                x, y, _bars(series, panel.log_y), marker=marker, linestyle="", capsize=1.5, elinewidth=0.8, **look
            )
        elif series.style == "theory":
            if series.name in measured:
                look.pop("label")  # its points have it
            ax.plot(x, y, linewidth=0.8, linestyle=dashes, **look)
        else:
            ax.plot(x, y, linestyle=dashes, **look)
            if series.low is not None and series.high is not None:
                low, high = np.asarray(series.low, float), np.asarray(series.high, float)
                ax.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)


def _bars(series: Series, log: bool) -> list[np.ndarray] | None:
    """Lengths of the error bars; on a logarithmic axis they stay above zero."""
    if series.low is None or series.high is None:
        return None
    y, low, high = (np.asarray(values, float) for values in (series.y, series.low, series.high))
    return [np.minimum(y - low, 0.99 * y) if log else y - low, high - y]


def _heat(ax: Axes, panel: Heat, all_heats: list[Heat]) -> Any:
    from matplotlib.colors import LogNorm

    values = np.ma.masked_less_equal(np.asarray(panel.values, float), 0)
    shown = np.concatenate([np.asarray(heat.values, float).ravel() for heat in all_heats])
    shown = shown[np.isfinite(shown) & (shown > 0)]
    limits = (shown.min(), shown.max()) if len(shown) else (None, None)
    mesh = ax.pcolormesh(values, norm=LogNorm(*limits), cmap="cividis", rasterized=True)
    ax.grid(False)
    for axis, names in ((ax.xaxis, panel.columns), (ax.yaxis, panel.rows)):
        every = -(-len(names) // TICKS)
        axis.set_ticks(np.arange(0, len(names), every) + 0.5, [_plain(name) for name in names[::every]])
    return mesh
