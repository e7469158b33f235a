"""Draws figures with matplotlib for a column or a page of a paper, to be read by the colour-blind and in gray print."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.contract import Missing
from bench.report.figures import Figure, Heat, Panel, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Drawing

FORMATS = ("png", "pdf", "svg")
COLUMN, PAGE = 3.5, 7.2
"""Widths in inches: of one column, and of a page of two."""
HEIGHT, LINE = 2.1, 0.135
"""Inches: of a row of panels, and of a line in a legend or a title."""
IN_A_ROW = 3
TICKS = 8
"""The most names along an axis of a heat map."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7A7A7A")
"""Okabe and Ito's, which differ under every kind of colour-blindness; a gray for their yellow, lost on white paper."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

TITLE, PANEL_TITLE, LEGEND = 9, 8, 7
"""Sizes of type in points."""
HANDLE = 32.0
"""Points that a line or a marker takes in a legend before its text, with the space between columns."""
ROOM = 0.05
"""Of an axis, beyond what no value is beyond, so that markers there are whole."""
BAND, FEW_BANDS = 0.2, 3
"""Opacity of a band, and up to how many series in a panel; of more it is half."""
BELOW_AXES = 28.0
"""Points from an axis to the legend under it: tick labels and the axis's name."""

SETTINGS: dict[Any, Any] = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": PANEL_TITLE, "legend.fontsize": LEGEND, "xtick.labelsize": 7,
    "ytick.labelsize": 7, "lines.linewidth": 1.2, "lines.markersize": 3.5, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5, "savefig.dpi": 300,
    "pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "linrec-bench", "legend.frameon": False,
    "legend.labelspacing": 0.35, "legend.title_fontsize": LEGEND,
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
    columns = min(figure.columns or (2 if count == 4 else IN_A_ROW), count)
    rows = -(-count // columns)
    width = COLUMN if count == 1 else PAGE
    labels, caption = _labels(figure), _wrapped(figure.caption, 72 * width - 20, LEGEND)
    title = _wrapped(figure.title, 72 * width - 20, TITLE)
    titles = [_wrapped(panel.title, 72 * (width / columns - 0.5), PANEL_TITLE) for panel in figure.panels]
    per_row = [slice(row * columns, (row + 1) * columns) for row in range(rows)]
    if labels is None:
        legends = [_own_labels(panel, 72 * width / columns) for panel in figure.panels]
        lines = sum(max(_lines_of(own) for own in legends[row]) for row in per_row)
        ncols = 1
    else:
        ncols = _columns_that_fit(labels.values(), 72 * width)
        labels = {name: _wrapped(label, 72 * width / ncols - HANDLE, LEGEND) for name, label in labels.items()}
        lines = math.ceil(_lines_of(labels) / ncols)
    lines += _count(caption) + _count(title) + sum(max(map(_count, titles[row])) for row in per_row)
    size = (width, HEIGHT * rows + LINE * lines)
    drawing = Drawing(figsize=size, layout="constrained")
    axes = drawing.subplots(rows, columns, squeeze=False, sharey=figure.share_y).ravel()
    looks = looks_of(figure)
    heats = [panel for panel in figure.panels if isinstance(panel, Heat)]
    for i, (ax, panel, text) in enumerate(zip(axes, figure.panels, titles, strict=False)):
        ax.set(title=_plain(text), xlabel=_plain(panel.x_label))
        if i % columns == 0 or not figure.share_y:
            ax.set_ylabel(_plain(panel.y_label))
        if isinstance(panel, Heat):
            mesh = _heat(ax, panel, heats)
            if panel is heats[-1]:
                drawing.colorbar(mesh, ax=list(axes), label=_plain(panel.value_label))
        else:
            _lines(ax, panel, looks)
    for ax, panel in zip(axes, figure.panels, strict=False):
        if isinstance(panel, Panel):
            _ticks(
                ax.xaxis,
                panel.log_x,
                [np.asarray(s.x, float)[np.isfinite(np.asarray(s.y, float))] for s in panel.series],
            )
            if panel.y_names:
                ax.set_yticks(range(len(panel.y_names)), [_plain(name) for name in panel.y_names])
                ax.set_ylim(len(panel.y_names) - 0.5, -0.5)
            else:
                _ticks(ax.yaxis, panel.log_y, [])
    for ax in axes[count:]:
        ax.set_axis_off()
    if labels is None:
        for ax, own in zip(axes, legends, strict=False):
            _legend_below(drawing, ax, own)
    _legend(drawing, labels or {}, ncols, caption)
    drawing.suptitle(_plain(title), fontsize=TITLE)
    return drawing


def looks_of(figure: Figure) -> dict[str, int]:
    """The number of the colour, dash and marker of each name of a figure, in the order in which names first come."""
    names = dict.fromkeys(series.name for series in _series(figure) if series.style != "front")
    return {name: i for i, name in enumerate(names)}


def _plain(text: str) -> str:
    """Names are text: nothing in them is a formula."""
    return text.replace("$", r"\$")


def _series(figure: Figure) -> list[Series]:
    return [series for panel in figure.panels if isinstance(panel, Panel) for series in panel.series]


@lru_cache(maxsize=4096)
def _width(text: str, size: float) -> float:
    """Of a line, in points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    return float(text_to_path.get_text_width_height_descent(text, FontProperties(size=size), ismath=False)[0])


def _wrapped(text: str, width: float, size: float) -> str:
    """The text in lines that fit so many points, broken behind spaces and commas where it can be."""
    lines = [""]
    for piece in re.findall(r"[^\s,;]*[\s,;]*", text):
        if lines[-1] and _width((lines[-1] + piece).rstrip(), size) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _count(text: str) -> int:
    return text.count("\n") + 1 if text else 0


def _lines_of(labels: dict[str, str]) -> int:
    return sum(map(_count, labels.values()))


def _labels(figure: Figure) -> dict[str, str] | None:
    """What one legend for all panels says of each name; None where panels say different things of a name."""
    ordered = sorted(_series(figure), key=lambda series: series.style == "front")  # which comes last
    notes: dict[str, dict[str, None]] = {series.name: {} for series in ordered}
    places: dict[str, list[str]] = {}
    for panel in figure.panels:
        for series in panel.series if isinstance(panel, Panel) else []:
            notes[series.name][series.note] = None
            if series.note:
                places.setdefault(series.name, []).append(panel.title)
    found = {}
    for name, said in notes.items():
        texts = [note for note in said if note]
        if len(texts) > 1:
            return None
        where = f"{', '.join(dict.fromkeys(places[name]))}: " if texts and len(said) > 1 else ""
        found[name] = f"{name} ({where}{texts[0]})" if texts else name
    return found


def _own_labels(panel: Panel | Heat, width: float) -> dict[str, str]:
    """What the legend of one panel says of each name."""
    series = panel.series if isinstance(panel, Panel) else []
    said = {one.name: f"{one.name} ({one.note})" if one.note else one.name for one in series}
    return {name: _wrapped(label, width - HANDLE, LEGEND) for name, label in said.items()}


def _columns_that_fit(labels: Iterable[str], width: float) -> int:
    widths = [_width(label, LEGEND) + HANDLE for label in labels]
    return max(1, min(len(widths), int(width / max(widths)))) if widths else 1


def _handles(axes: Iterable[Axes]) -> dict[str, Any]:
    """The first drawn of each name."""
    handles: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(str(label), handle)
    return handles


def _legend(drawing: Drawing, labels: dict[str, str], columns: int, caption: str) -> None:
    """One for all panels, in the order in which names first come, under what a reader must know."""
    handles = _handles(drawing.axes)
    names = [name for name in labels if _plain(name) in handles]
    if names or caption:
        drawing.legend(
            [handles[_plain(name)] for name in names], [_plain(labels[name]) for name in names],
            loc="outside lower center", ncols=columns, title=_plain(caption) or None,
        )  # fmt: skip


def _legend_below(drawing: Drawing, ax: Axes, labels: dict[str, str]) -> None:
    """One under a panel."""
    from matplotlib.transforms import ScaledTranslation

    handles = _handles([ax])
    names = [name for name in labels if _plain(name) in handles]
    below = ax.transAxes + ScaledTranslation(0, -BELOW_AXES / 72, drawing.dpi_scale_trans)
    if names:
        ax.legend(
            [handles[_plain(name)] for name in names], [_plain(labels[name]) for name in names],
            loc="upper center", bbox_to_anchor=(0.5, 0), bbox_transform=below, borderaxespad=0,
        )  # fmt: skip


def look(i: int) -> tuple[str, Any, str]:
    """Colour, dashes and marker of the i-th name: colour and dashes, or colour and marker, repeat after 48 at first."""
    dashes = DASHES[(i + i // math.lcm(len(COLOURS), len(DASHES))) % len(DASHES)]
    return COLOURS[i % len(COLOURS)], dashes, MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]


def _lines(ax: Axes, panel: Panel, looks: dict[str, int]) -> None:
    if panel.log_x:
        ax.set_xscale("log")
    if panel.log_y:
        ax.set_yscale("log")
    measured = {series.name for series in panel.series if series.style in ("points", "joined")}
    for series in panel.series:
        x, y = np.asarray(series.x, float), np.asarray(series.y, float)
        if series.style == "front":
            falls = y[-1] < y[0]  # more x is better then, and a point holds where x is no better
            ax.step(
                x, y, where="pre" if falls else "post", color="0.35", linewidth=0.7, linestyle=(0, (1, 1)), marker="o",
                markersize=8, markerfacecolor="none", markeredgewidth=0.7, zorder=1.5, label=_plain(series.name),
            )  # fmt: skip
            continue
        colour, dashes, marker = look(looks[series.name])
        above = 2 + 0.01 * DASHES.index(dashes)  # dashes show on a line that they lie on
        drawn: dict[str, Any] = {"color": colour, "label": _plain(series.name), "zorder": above}
        if series.style in ("points", "joined"):
            up = _bars(y, series.low, series.high, panel.log_y)
            sideways = _bars(x, series.x_low, series.x_high, panel.log_x)
            joined = dashes if series.style == "joined" else ""
            ax.errorbar(x, y, up, sideways, marker=marker, linestyle=joined, capsize=1.5, elinewidth=0.8, **drawn)
        elif series.style == "theory":
            if series.name in measured:
                drawn.pop("label")  # its points have it
            ax.plot(x, y, linewidth=0.8, linestyle=dashes, **drawn)
        else:
            ax.plot(x, y, linestyle=dashes, **drawn)
            drawn.pop("label")
            known = np.isfinite(x) & np.isfinite(y)
            alone = known & ~np.append(False, known[:-1]) & ~np.append(known[1:], False)
            ax.plot(x[alone], y[alone], linestyle="", marker=marker, **drawn)
            if series.low is not None and series.high is not None:
                low, high = np.asarray(series.low, float), np.asarray(series.high, float)
                ax.fill_between(
                    x, low, high, color=colour, alpha=BAND if len(panel.series) <= FEW_BANDS else BAND / 2, linewidth=0
                )
    for log, (first, last), axis in (
        (panel.log_x, ax.dataLim.intervalx, "x"), (panel.log_y, ax.dataLim.intervaly, "y"),
    ):  # fmt: skip
        if log and 0 < first <= last <= first * (1 + 1e-9):  # one value has no range of its own
            ax.update_datalim([(first / 2,) * 2, (last * 2,) * 2], updatex=axis == "x", updatey=axis == "y")
    if panel.bounds:
        bottom, top = ax.get_ylim()
        lowest, highest = panel.bounds
        room = ROOM * (min(top, highest) - max(bottom, lowest))
        ax.set_ylim(max(bottom, lowest - room), min(top, highest + room))


def _bars(values: np.ndarray, lower: Any, upper: Any, log: bool) -> list[np.ndarray] | None:
    """Lengths of the error bars; on a logarithmic axis they stay above zero."""
    if lower is None or upper is None:
        return None
    low, high = np.asarray(lower, float), np.asarray(upper, float)
    return [np.minimum(values - low, 0.99 * values) if log else values - low, high - values]


def _ticks(axis: Axis, log: bool, values: Sequence[np.ndarray]) -> None:
    """Ticks with plain numbers; on a logarithmic axis at round numbers, or at the values where these are few."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    if not log:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        return
    found = np.unique(np.concatenate([*values, []]))
    ticks = log_ticks(*axis.get_view_interval(), found[np.isfinite(found)])
    labels = dict(zip(ticks, log_labels(ticks), strict=True))
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: labels.get(value, "")))
    axis.set_minor_locator(NullLocator())


FEW, MANY = 5, 7
"""Ticks on an axis: the most that stand at values themselves, and the most of all."""
APART = 1.5
"""By how much values must differ, as a ratio, to be ticks side by side."""
SPARSE = 0.2
"""The least distance of ticks in equal steps, as a share of the axis."""


def log_ticks(low: float, high: float, values: np.ndarray) -> list[float]:
    """Numbers from `low` to `high`, both above 0, that a logarithmic axis names.

    The sorted `values` themselves where they are few and apart; powers of 2 where all but the last are such; else
    powers of 10, with 2 and 5 times these over a short range; equal steps over less than a factor of 5.
    """
    from matplotlib.ticker import MaxNLocator

    if 2 <= len(values) <= FEW and (values[0] > 0) and (values[1:] / values[:-1] >= APART).all():
        return [float(value) for value in values]
    if len(values) > 2 and (values > 0).all() and (np.log2(values[:-1]) % 1 == 0).all():
        return _powers(2, low, high, FEW)
    if high / low < 5:
        for most in range(FEW, 0, -1):
            found = [float(step) for step in MaxNLocator(most).tick_values(low, high) if low <= step <= high]
            if all(math.log(b / a) >= SPARSE * math.log(high / low) for a, b in pairwise(found)):
                break
        return found
    tens = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3)):
        found = [factor * 10.0**k for k in tens for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) <= MANY:
            return found
    return _powers(10, low, high, MANY)


def _powers(base: int, low: float, high: float, most: int) -> list[float]:
    """Powers of a number in a range, every so many of them."""
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    every = max(1, -(-(last - first + 1) // most))
    return [float(base) ** k for k in range(first, last + 1) if k % every == 0]


def log_labels(ticks: Sequence[float]) -> list[str]:
    """The numbers with thousands apart, or all with powers of ten where one is too small or too large for that."""
    if all(1e-4 < abs(tick) < 1e6 for tick in ticks):
        return [f"{tick:,.10g}" for tick in ticks]
    found = []
    for tick in ticks:
        mantissa, power = f"{tick:.3e}".split("e")
        ten = f"10^{{{int(power)}}}"
        factor = f"{float(mantissa):g}"
        found.append(f"${ten}$" if factor == "1" else rf"${factor}\times{ten}$")
    return found


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
