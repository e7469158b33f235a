"""How an image of the Pathfinder task comes about: contours of paddles are laid out, then drawn."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import numpy as np

CONTOUR_PADDLES: Mapping[str, int] = {"easy": 6, "medium": 9, "hard": 14}
"""Paddles of a target contour. A distractor has a third as many, rounded down."""

PADDING = 1
"""Pixels at the border that no paddle reaches."""
OVERLAP = 1.8
"""A paddle is refused where its mask and that of all the others together reach this; each mask is at most 1."""
TRIES = 3
"""For each paddle, before the image is begun anew, or the distractor is left out."""
DISTRACTOR_TRIES = 10
"""Places that are tried for a distractor."""

ATTEMPT_PIXELS = 2**23
"""Of the images that are laid out side by side, at most."""
ATTEMPTS = 8
"""For each image that is wanted: side by side they cost less, and most fail where images are crowded."""

LOBES = 3


@dataclasses.dataclass(frozen=True)
class Style:
    """The measures of an image, in pixels. `distractor_paddles` are shared out among distractors of equal length."""

    margins: tuple[int, ...]
    paddle: float
    thickness: float
    disc: float
    """The radius."""
    seed_distance: int
    """Between the starts of the two targets, and half of how far the first keeps from the border."""
    continuity: float
    """How stiff a contour is: no turn is sharper than a right angle divided by this."""
    distractor_paddles: int
    brightness: float
    """Of a paddle; a disc has 1. Thin paddles need more, as they fill only part of their pixels."""


# Distractors are as bright as targets, so that brightness does not tell them apart. The continuity and the distance
# of the starts at 256 pixels are chosen here: the farther the starts, the more the discs' distance tells of the label.
STYLES: Mapping[int, Style] = {
    32: Style((1,), 2, 0.5, 1.5, 7, 1.0, 20, 1.5),
    128: Style((2, 3), 5, 1.5, 3, 20, 1.8, 35, 0.9),
    256: Style((3,), 5, 2, 5, 20, 1.8, 30, 0.9),
}


@dataclasses.dataclass(frozen=True)
class Scene:
    """What an image shows. Coordinates are (column, row); pixels have their centres at whole numbers.

    `contours`: arrays (paddles, 3) of column and row where a paddle starts and its heading in radians; the two
    targets come first. `discs`: (2, 2), two centres. `joined`: the target of each disc.
    """

    label: int
    contours: tuple[np.ndarray, ...]
    discs: np.ndarray
    joined: tuple[int, int]


def scenes(rng: np.random.Generator, size: int, difficulty: str, count: int) -> list[Scene]:
    """Draws `count` scenes. Labels are drawn first, and what is laid out does not depend on them: only the discs do."""
    style = STYLES[size]
    labels, firsts = rng.integers(2, size=(2, count)).tolist()
    margins = rng.choice(style.margins, count)
    drawn: dict[int, Scene] = {}
    for margin in style.margins:
        wanted = np.flatnonzero(margins == margin).tolist()
        attempts = min(max(32, ATTEMPTS * len(wanted)), ATTEMPT_PIXELS // size**2)
        layouts = _layouts(rng, size, style, margin, CONTOUR_PADDLES[difficulty], attempts)
        for place, contours in zip(wanted, layouts, strict=False):
            first = firsts[place]
            second = first if labels[place] else 1 - first
            discs = np.array([contours[first][0, :2], tip(contours[second], size)])
            drawn[place] = Scene(labels[place], contours, discs, (first, second))
    return [drawn[place] for place in range(count)]


def tip(contour: np.ndarray, size: int) -> np.ndarray:
    """Where a contour (paddles, 3) ends: column and row."""
    return _ahead(contour[-1], STYLES[size].paddle)


def render(drawn: Sequence[Scene], size: int) -> np.ndarray:
    """The images (scenes, size, size), uint8: black ground, each image stretched to 0..255.

    Every stroke is drawn at twice the size with soft edges, reduced by a Lanczos filter of three lobes, and joined to
    the image by the larger value.
    """
    style = STYLES[size]
    owner = np.repeat(np.arange(len(drawn)), [sum(map(len, scene.contours)) for scene in drawn])
    paddles = np.concatenate([contour for scene in drawn for contour in scene.contours])
    discs = np.concatenate([scene.discs for scene in drawn])
    edge = math.ceil(style.paddle / 2 + style.disc) + LOBES + 2
    canvas = np.zeros((len(drawn), size + 2 * edge, size + 2 * edge), np.float32)
    middles = _ahead(paddles, style.paddle / 2)
    _draw(canvas, edge, owner, middles, paddles[:, 2], style.paddle, style.thickness, style.brightness)
    # A disc is a stroke as long as it is wide.
    owner = np.repeat(np.arange(len(drawn)), 2)
    _draw(canvas, edge, owner, discs, np.zeros(len(discs)), 2 * style.disc, 2 * style.disc, 1)
    images = canvas[:, edge:-edge, edge:-edge]
    return np.rint(images * (255 / images.max(axis=(1, 2), keepdims=True))).astype(np.uint8)


def _draw(
    canvas: np.ndarray,
    edge: int,
    owner: np.ndarray,
    middles: np.ndarray,
    angles: np.ndarray,
    length: float,
    width: float,
    brightness: float,
) -> None:
    """Joins strokes of one kind to the images that own them; `edge` pixels of the canvas lie outside on each side."""
    half = math.ceil(length / 2) + 1
    nearest = np.rint(middles).astype(np.int64)
    fine = np.arange(-half + 0.25, half, 0.5)  # the pixels of double resolution around the pixel `nearest`
    distance = _distance(fine, middles - nearest, angles, length, width)
    drawn = np.clip(0.5 + 2 * (width / 2 - distance), 0, 1)
    coarse = np.arange(-half - LOBES, half + LOBES + 1)
    weights = _lanczos(fine - coarse[:, None]) / _lanczos(np.arange(-LOBES + 0.25, LOBES, 0.5)).sum()
    patches = brightness * (weights @ drawn @ weights.T)
    rows = (nearest[:, 1, None] + coarse + edge)[:, :, None]
    columns = (nearest[:, 0, None] + coarse + edge)[:, None, :]
    np.maximum.at(canvas, (owner[:, None, None], rows, columns), patches.astype(np.float32))


def _lanczos(distance: np.ndarray) -> np.ndarray:
    return np.where(np.abs(distance) < LOBES, np.sinc(distance) * np.sinc(distance / LOBES), 0)


def _ahead(paddles: np.ndarray, distance: float) -> np.ndarray:
    """From the starts of paddles (..., 3) along their headings: (..., 2)."""
    return paddles[..., :2] + distance * np.stack([np.cos(paddles[..., 2]), np.sin(paddles[..., 2])], axis=-1)


def _layouts(
    rng: np.random.Generator, size: int, style: Style, margin: int, paddles: int, attempts: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """Contours of one image after another, without end."""
    while True:
        planes = _Planes(rng, size, style, margin, attempts)
        found, targets = _targets(planes, paddles)
        length = paddles // 3
        distractors = [_distractors(planes, found, length) for _ in range(style.distractor_paddles // length)]
        for place in range(len(found)):
            others = (contours[place] for there, contours in distractors if there[place])
            yield (*targets[place], *others)


@cache
def _ring(radius: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole pixels on a circle around 0: (pixels, 2), and their angles."""
    pixels = np.mgrid[-radius : radius + 1, -radius : radius + 1].reshape(2, -1).T
    pixels = pixels[np.rint(np.hypot(*pixels.T)) == radius]
    return pixels, np.arctan2(pixels[:, 1], pixels[:, 0])


class _Planes:
    """What is taken of many images while contours grow.

    1 within `margin` of a paddle, 0 beyond, with an edge one pixel wide. Methods take the numbers of the images that
    they are about, each at most once, and a paddle for each, (images, 3).
    """

    def __init__(self, rng: np.random.Generator, size: int, style: Style, margin: int, images: int) -> None:
        self.rng, self.size, self.style, self.margin = rng, size, style, margin
        self.stride = style.paddle + 2 * margin
        self.half = math.ceil(style.paddle / 2 + margin + 1)
        # So wide that neither a mask nor a ring around a pixel of the image leaves the array.
        self.border = self.half + math.ceil(style.paddle) + margin
        self.taken = np.zeros((images, *(size + 2 * self.border,) * 2), np.float32)
        self.ring, self.angles = _ring(round(style.paddle + margin))

    def starts(self, pixels: np.ndarray) -> np.ndarray:
        """Paddles that start at these pixels, (images, 2), each with a heading of whole degrees."""
        return np.column_stack([pixels, np.radians(self.rng.integers(360, size=len(pixels)))])

    def inside(self, points: np.ndarray) -> np.ndarray:
        """Whether points (..., 2) keep away from the border."""
        return np.all((points >= PADDING) & (points <= self.size - 1 - PADDING), axis=-1)

    def put(self, images: np.ndarray, paddles: np.ndarray) -> np.ndarray:
        """Takes the places of paddles: whether each was free, and another after it would start inside."""
        middles = _ahead(paddles, self.style.paddle / 2)
        nearest = np.rint(middles).astype(np.int64)
        grid = np.arange(-self.half, self.half + 1)
        distance = _distance(grid, middles - nearest, paddles[:, 2], self.style.paddle, self.style.thickness)
        masks = np.clip(self.style.thickness / 2 + self.margin + 0.5 - distance, 0, 1)
        place = grid + self.border
        rows = (nearest[:, 1, None] + place)[:, :, None]
        columns = (nearest[:, 0, None] + place)[:, None, :]
        there = self.taken[images[:, None, None], rows, columns]
        free = ((there + masks).max(axis=(1, 2)) < OVERLAP) & self.inside(_ahead(paddles, self.stride))
        self.taken[images[free, None, None], rows[free], columns[free]] = np.maximum(there[free], masks[free])
        return free

    def extend(self, images: np.ndarray, paddles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whether each paddle got a successor, and the successors: free and nearly straight directions are likely."""
        starts = _ahead(paddles, self.stride)
        pixels = np.rint(starts).astype(np.int64)[:, None] + self.ring + self.border
        turns = np.abs((self.angles - paddles[:, 2, None] + math.pi) % (2 * math.pi) - math.pi)
        straight = np.cos(np.minimum(self.style.continuity * turns, math.pi / 2))
        ends = starts[:, None] + self.stride * np.stack([np.cos(self.angles), np.sin(self.angles)], axis=-1)
        empty = 1 - self.taken[images[:, None], pixels[..., 1], pixels[..., 0]]
        likely = np.cumsum(empty * straight**2 * self.inside(ends), axis=1)
        found = np.zeros(len(images), bool)
        successors = np.column_stack([starts, paddles[:, 2]])
        for _ in range(TRIES):
            left = np.flatnonzero(~found & (likely[:, -1] > 1e-6))
            drawn = self.rng.random((len(left), 1)) * likely[left, -1:]
            chosen = np.minimum((likely[left] <= drawn).sum(axis=1), len(self.ring) - 1)
            successors[left, 2] = self.angles[chosen]
            found[left] = self.put(images[left], successors[left])
        return found, successors


def _targets(planes: _Planes, paddles: int) -> tuple[np.ndarray, np.ndarray]:
    """Images in which two contours, grown in turn, found room; and these, (images, 2, paddles, 3)."""
    style = planes.style
    images = np.arange(len(planes.taken))
    inner = 2 * style.seed_distance
    ring, _ = _ring(style.seed_distance)
    contours = np.zeros((len(images), 2, paddles, 3))
    one = planes.rng.integers(inner, planes.size - inner, (len(images), 2))
    contours[:, 0, 0] = planes.starts(one)
    contours[:, 1, 0] = planes.starts(one + ring[planes.rng.integers(len(ring), size=len(images))])
    for which in range(2):
        images = images[planes.put(images, contours[images, which, 0])]
    for place, which in itertools.product(range(1, paddles), range(2)):
        found, contours[images, which, place] = planes.extend(images, contours[images, which, place - 1])
        images = images[found]
    contours = contours[images]
    # Discs must not touch. All pairs that any label would mark are looked at, so that it decides nothing here.
    starts, ends = contours[:, :, 0, :2], _ahead(contours[:, :, -1], style.paddle)
    between = np.linalg.norm(starts[:, :, None] - ends[:, None], axis=-1)
    apart = (between >= 2 * style.disc + planes.margin).all(axis=(1, 2))
    return images[apart], contours[apart]


def _distractors(planes: _Planes, images: np.ndarray, paddles: int) -> tuple[np.ndarray, np.ndarray]:
    """One more contour in each image: whether it found room, and it, (images, paddles, 3)."""
    contours = np.zeros((len(images), paddles, 3))
    found = np.zeros(len(images), bool)
    for _ in range(DISTRACTOR_TRIES):
        left = np.flatnonzero(~found)
        before = planes.taken[images[left]]
        pixels = planes.rng.integers(PADDING, planes.size - PADDING, (len(left), 2))
        contours[left, 0] = planes.starts(pixels)
        growing = left[planes.put(images[left], contours[left, 0])]
        for place in range(1, paddles):
            grown, contours[growing, place] = planes.extend(images[growing], contours[growing, place - 1])
            growing = growing[grown]
        found[growing] = True
        given_up = ~found[left]
        planes.taken[images[left[given_up]]] = before[given_up]
    return found, contours


def _distance(grid: np.ndarray, middles: np.ndarray, angles: np.ndarray, length: float, width: float) -> np.ndarray:
    """From each point of grid x grid to the middle line of each stroke, (strokes, rows, columns).

    A stroke has round ends and is `length` long over all.
    """
    columns = (grid - middles[:, 0, None])[:, None, :]
    rows = (grid - middles[:, 1, None])[:, :, None]
    cos, sin = np.cos(angles)[:, None, None], np.sin(angles)[:, None, None]
    beyond = np.maximum(np.abs(columns * cos + rows * sin) - (length - width) / 2, 0)
    return np.hypot(beyond, columns * sin - rows * cos)
