"""Pathfinder: what the images show, that labels follow from it, and that generation goes on where it was killed."""

import itertools
import sys
import time
import types

import numpy as np
import pytest

from bench.contract import Split
from bench.data import dataset, shared
from bench.seeds import generator
from suites.tasks import pathfinder
from suites.tasks.pathfinder import Pathfinder
from suites.tasks.pathfinder_drawing import PADDING, STYLES, render, scenes, tip

COUNTS = {"train": 20, "validation": 4, "test": 5}
EASY = {"difficulty": "easy", **COUNTS}
PADDLES = {"easy": 6, "medium": 9, "hard": 14}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCH_DATA", raising=False)


@pytest.fixture(scope="module", params=[(32, "hard", 100), (32, "medium", 20), (128, "easy", 20), (256, "hard", 6)])
def drawn(request):
    """Size, difficulty, scenes and their images."""
    size, difficulty, count = request.param
    start = time.process_time()
    found = scenes(generator(0, "test"), size, difficulty, count)
    images = render(found, size)
    print(f"\n{size} x {size}, {difficulty}: {count / (time.process_time() - start):.0f} images/s of CPU time")
    return size, difficulty, found, images


@pytest.fixture(scope="module")
def many():
    """Scenes of one kind, with their labels."""
    found = scenes(generator(1, "test"), 32, "easy", 400)
    return found, np.array([scene.label for scene in found]), render(found, 32)


def heading(paddle):
    return np.array([np.cos(paddle[2]), np.sin(paddle[2])])


def points(contour, size):
    """Ten points on the middle line of each paddle, (paddles, 10, 2)."""
    along = np.linspace(0, STYLES[size].paddle, 10)
    return np.array([paddle[:2] + along[:, None] * heading(paddle) for paddle in contour])


def follow(scene, size):
    """The label, found as a person would: from disc to disc, across gaps, straight ahead. Does not know contours."""
    paddles = np.random.default_rng(0).permutation(np.concatenate(scene.contours))
    length = STYLES[size].paddle
    at = int(np.argmin(np.linalg.norm(paddles[:, :2] - scene.discs[0], axis=1)))
    while True:
        end = paddles[at, :2] + length * heading(paddles[at])
        if np.linalg.norm(end - scene.discs[1]) < 1e-9:
            return 1
        (gap,) = {2 * margin for margin in STYLES[size].margins} & {round(gap_of(scene, size), 6)}
        beyond = np.linalg.norm(paddles[:, :2] - (end + gap * heading(paddles[at])), axis=1)
        if beyond.min() > 1e-9:
            return 0
        at = int(np.argmin(beyond))


def gap_of(scene, size):
    contour = scene.contours[0]
    return np.linalg.norm(contour[1, :2] - contour[0, :2]) - STYLES[size].paddle


def test_both_discs_lie_on_one_contour_exactly_where_the_label_is_1(drawn):
    size, _, found, _ = drawn
    assert {scene.label for scene in found} == {0, 1}
    for scene in found:
        one, other = scene.joined
        assert set(scene.joined) <= {0, 1}
        assert scene.label == (one == other) == follow(scene, size)
        np.testing.assert_array_equal(scene.discs[0], scene.contours[one][0, :2])
        np.testing.assert_array_equal(scene.discs[1], tip(scene.contours[other], size))


def test_contours_have_their_paddles_gaps_and_turns(drawn):
    size, difficulty, found, _ = drawn
    style, many = STYLES[size], PADDLES[difficulty]
    for scene in found:
        targets, distractors = scene.contours[:2], scene.contours[2:]
        assert [len(contour) for contour in targets] == [many, many]
        assert {len(contour) for contour in distractors} <= {many // 3}
        assert len(distractors) <= style.distractor_paddles // (many // 3)
        assert 2 * style.margins[0] - 1e-9 <= gap_of(scene, size) <= 2 * style.margins[-1] + 1e-9
        for contour in scene.contours:
            for before, after in itertools.pairwise(contour):
                reach = (style.paddle + gap_of(scene, size)) * heading(before)
                np.testing.assert_allclose(after[:2], before[:2] + reach, atol=1e-9)
                turn = abs((after[2] - before[2] + np.pi) % (2 * np.pi) - np.pi)
                assert turn < np.pi / 2 / style.continuity
    # Most distractors find room.
    assert np.mean([len(scene.contours) - 2 for scene in found]) > 0.6 * (style.distractor_paddles // (many // 3))


def test_targets_start_at_their_distance_and_stay_inside(drawn):
    size, _, found, _ = drawn
    style = STYLES[size]
    for scene in found:
        starts = [contour[0, :2] for contour in scene.contours[:2]]
        assert np.linalg.norm(starts[0] - starts[1]) == pytest.approx(style.seed_distance, abs=0.5)  # whole pixels
        assert 2 * style.seed_distance <= starts[0].min() <= starts[0].max() < size - 2 * style.seed_distance
        everywhere = np.concatenate([points(contour, size).reshape(-1, 2) for contour in scene.contours])
        assert PADDING <= everywhere.min() <= everywhere.max() <= size - 1 - PADDING


def test_strokes_and_discs_do_not_touch(drawn):
    size, _, found, _ = drawn
    style = STYLES[size]
    for scene in found[:20]:
        lines = np.concatenate([points(contour, size) for contour in scene.contours])
        between = np.linalg.norm(lines[:, None, :, None] - lines[None, :, None], axis=-1).min(axis=(2, 3))
        np.fill_diagonal(between, np.inf)
        assert between.min() > style.thickness
        assert np.linalg.norm(scene.discs[0] - scene.discs[1]) > 2 * style.disc


def test_images_show_the_scene(drawn):
    size, _, found, images = drawn
    assert (images.shape, images.dtype) == ((len(found), size, size), np.uint8)
    for scene, image in list(zip(found, images, strict=True))[:10]:
        assert (image.min(), image.max()) == (0, 255)
        middles = np.concatenate([points(contour, size)[:, 4:6].mean(axis=1) for contour in scene.contours])
        columns, rows = np.rint(middles).astype(int).T
        # A thin paddle whose middle lies on the edge of its nearest pixel leaves it a quarter of its light.
        assert image[rows, columns].min() > 30
        columns, rows = np.rint(scene.discs).astype(int).T
        assert image[rows, columns].min() > 200
        row, column = np.mgrid[:size, :size]
        far = np.full((size, size), True)
        for x, y in [*middles, *scene.discs]:
            far &= np.hypot(column - x, row - y) > max(STYLES[size].disc, STYLES[size].paddle / 2) + 4
        assert not image[far].any()


def test_brightness_does_not_tell_targets_from_distractors():
    found = scenes(generator(2, "test"), 32, "medium", 150)
    light = {"target": [], "distractor": []}
    for scene, image in zip(found, render(found, 32), strict=True):
        for number, contour in enumerate(scene.contours):
            # The second paddle of each: no disc covers it.
            column, row = np.rint(points(contour[1:2], 32).mean(axis=1)[0]).astype(int)
            light["target" if number < 2 else "distractor"].append(image[row, column])
    means = [np.mean(values) for values in light.values()]
    errors = [np.std(values) / np.sqrt(len(values)) for values in light.values()]
    # 4 standard errors of the difference of two means.
    assert abs(means[0] - means[1]) < 4 * np.hypot(*errors)


def test_labels_are_a_fair_coin(many):
    _, labels, _ = many
    assert labels.mean() == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / len(labels)))


def test_counts_carry_no_label(many):
    found, labels, images = many
    counts = {
        "lit pixels": (images > 0).sum((1, 2)),
        "bright pixels": (images > 127).sum((1, 2)),
        "light": images.sum((1, 2), dtype=float),
        "contours": np.array([len(scene.contours) for scene in found]),
    }
    for name, count in counts.items():
        one, other = count[labels == 0], count[labels == 1]
        # 4 standard errors of the difference of two means.
        error = 4 * np.sqrt(one.var() / len(one) + other.var() / len(other))
        assert abs(one.mean() - other.mean()) < error, name


def test_what_is_laid_out_does_not_depend_on_the_labels():
    class Turned:
        """A generator whose first draw, the labels and which target has the first disc, is turned around."""

        def __init__(self):
            self.rng, self.turned = generator(0, "test"), False

        def integers(self, *arguments, **options):
            numbers = self.rng.integers(*arguments, **options)
            if not self.turned:
                numbers[0] = 1 - numbers[0]
                self.turned = True
            return numbers

        def __getattr__(self, name):
            return getattr(self.rng, name)

    straight, turned = (scenes(rng, 32, "easy", 10) for rng in (generator(0, "test"), Turned()))
    for one, other in zip(straight, turned, strict=True):
        assert one.label == 1 - other.label
        for contour, same in zip(one.contours, other.contours, strict=True):
            np.testing.assert_array_equal(contour, same)


def test_margins_are_drawn_evenly():
    found = scenes(generator(0, "test"), 128, "easy", 100)
    wide = np.mean([gap_of(scene, 128) > 5 for scene in found])
    assert wide == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 100))


# The data set


@pytest.mark.parametrize(("size", "count"), [(32, 60), (128, 8)])
def test_the_floor_sees_the_distance_of_the_discs(size, count):
    found = scenes(generator(4, "test"), size, "easy", count)
    inputs = (render(found, size) / 127.5 - 1).reshape(count, -1, 1).astype(np.float32)
    lengths = np.full(count, size**2, np.int32)
    between = np.array([np.linalg.norm(scene.discs[0] - scene.discs[1]) for scene in found])
    task = Pathfinder(size=size, difficulty="easy")
    # With these labels the distance tells all: far (or near) discs are of class 1, but for those too close to call.
    for labels in (between > np.median(between), between < np.median(between)):
        split = Split(inputs=inputs, lengths=lengths, targets=labels.astype(np.int32))
        floors = task.floors(dataset(split, split, split, vocabulary_size=None, classes=2))
        assert floors["disc distance"] > 0.9
    split = Split(inputs=inputs, lengths=lengths, targets=np.arange(count, dtype=np.int32) % 4 // 3)
    floors = task.floors(dataset(split, split, split, vocabulary_size=None, classes=2))
    assert floors["majority"] == 0.75
    assert floors["disc distance"] >= 0.75  # on the images that it was fitted on


@pytest.mark.parametrize("size", [32, 128, 256])
def test_inputs_are_the_images_row_by_row_from_minus_1_to_1(size):
    task = Pathfinder(size=size, difficulty="easy", train=3, validation=2, test=1)
    assert (task.length, task.classes, task.features, task.vocabulary) == (size**2, 2, 1, None)
    data = task.load(0)
    assert [len(part) for part in (data.train, data.validation, data.test)] == [3, 2, 1]
    found = scenes(generator(0, "pathfinder", size, "easy", "train", 0), size, "easy", 3)
    np.testing.assert_allclose(
        data.train.inputs.reshape(3, size, size), render(found, size) / 127.5 - 1, rtol=0, atol=1e-6
    )
    assert data.train.targets.tolist() == [scene.label for scene in found]
    assert (data.train.inputs.min(), data.train.inputs.max()) == (-1, 1)
    assert set(data.train.lengths.tolist()) == {size**2}


def test_seeds_and_options_count_and_splits_share_nothing():
    variants = [(Pathfinder(**EASY), 0), (Pathfinder(**EASY), 1), (Pathfinder(**(EASY | {"difficulty": "medium"})), 0)]
    found = [task.load(seed) for task, seed in variants]
    assert len({data.checksum for data in found}) == 3
    parts = [found[0].train, found[0].validation, found[0].test, found[1].train]
    for place, one in enumerate(parts):
        assert all(shared(one, other) == 0 for other in parts[place + 1 :])
        assert len(np.unique(one.inputs, axis=0)) == len(one)


def test_more_training_images_change_no_others(monkeypatch):
    monkeypatch.setattr(pathfinder, "BLOCK", 10)
    small, large = (Pathfinder(**(EASY | {"train": count})).load(0) for count in (20, 30))
    np.testing.assert_array_equal(small.train.inputs, large.train.inputs[:20])
    np.testing.assert_array_equal(small.validation.inputs, large.validation.inputs)
    np.testing.assert_array_equal(small.test.inputs, large.test.inputs)


def test_killed_generation_goes_on_and_its_data_are_the_undisturbed_ones(monkeypatch, tmp_path):
    monkeypatch.setattr(pathfinder, "BLOCK", 8)
    task = Pathfinder(**EASY)
    undisturbed = task.load(3)
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "second"))
    calls = []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return scenes(*arguments)

    monkeypatch.setattr(pathfinder, "scenes", killed)
    with pytest.raises(KeyboardInterrupt):
        task.load(3)
    assert task.load(3).checksum == undisturbed.checksum
    # Blocks of 8, 8 and 4, 4, and 5 images, of which one was begun twice.
    assert [count for *_, count in calls] == [8, 8, 4, 4, 4, 5]
    assert task.load(3).checksum == undisturbed.checksum
    assert len(calls) == 6


def test_published_figures_are_of_the_hard_images_at_32_and_128():
    assert Pathfinder().published == ("LRA", "Pathfinder")
    assert Pathfinder(size=128).published == ("LRA", "Path-X")
    assert Pathfinder(size=256).published is None
    assert Pathfinder(difficulty="medium").published is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 64}, "size must be 32, 128, 256, not 64"),
        ({"difficulty": "curv_baseline"}, "difficulty must be easy, medium, hard, not 'curv_baseline'"),
        ({"origin": "web"}, "origin must be generated or files, not 'web'"),
        ({"train": 0}, "train must be an integer of at least 1, not 0"),
        ({"test": 2.5}, "test must be an integer of at least 1, not 2.5"),
        ({"origin": "files", "validation": 5}, "validation=5 is an option of origin=generated"),
    ],
)
def test_options_that_have_no_meaning_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        Pathfinder(**options)


def test_a_seed_is_a_number_from_0():
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, not -1"):
        Pathfinder().load(-1)


def test_files_are_split_by_a_fixed_seed_and_equal_images_stay_together(monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (100, 32, 32), np.uint8)
    images = np.concatenate([images, images[:30]])
    labels = np.arange(130, dtype=np.int32) % 2
    asked = []

    def read(size, difficulty):
        asked.append((size, difficulty))
        return {"images": images, "labels": labels, "skipped": np.array(3)}

    monkeypatch.setitem(sys.modules, "suites.tasks.pathfinder_files", types.SimpleNamespace(read=read))
    task = Pathfinder(origin="files", difficulty="medium")
    with pytest.warns(UserWarning, match="pathfinder: 3 empty pictures are left out"):
        data, again = task.load(0), task.load(1)
    assert data.checksum == again.checksum
    assert asked == [(32, "medium")] * 2
    parts = [data.train, data.validation, data.test]
    assert [len(np.unique(part.inputs, axis=0)) for part in parts] == [80, 10, 10]
    assert sum(map(len, parts)) == 130
    rows = {row.tobytes(): set() for row in (images.reshape(130, -1, 1).astype(np.float32) / 127.5 - 1)}
    for image, label in zip(images, labels, strict=True):
        rows[(image.reshape(-1, 1).astype(np.float32) / 127.5 - 1).tobytes()].add(int(label))
    for part in parts:
        assert all(int(label) in rows[row.tobytes()] for row, label in zip(part.inputs, part.targets, strict=True))
    for part, other in ((0, 1), (0, 2), (1, 2)):
        assert shared(parts[part], parts[other]) == 0
    monkeypatch.setitem(
        sys.modules,
        "suites.tasks.pathfinder_files",
        types.SimpleNamespace(read=lambda *_: {"images": images[:5], "labels": labels[:5], "skipped": np.array(0)}),
    )
    with pytest.raises(ValueError, match="5 different images are too few"):
        task.load(0)
