"""Speech Commands: its layouts, its two scalings, its rates, and cepstral coefficients against their definition."""

import dataclasses

import numpy as np
import pytest
from user_data import put, speech, wav

from bench.contract import Missing
from bench.data import shared
from suites.tasks.mfcc import mfcc
from suites.tasks.speech_commands import COMMANDS, WORDS, SpeechCommands

SPLITS = ("train", "validation", "test")


@pytest.fixture
def root(tmp_path, monkeypatch):
    root = tmp_path / "data"
    root.mkdir()
    monkeypatch.setenv("BENCH_DATA", str(root))
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path / "cache"))
    return root


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """(folder, samples): six clips of each of ten words, the lists naming one of each for validation and for test."""
    root = tmp_path_factory.mktemp("ten")
    return root, speech(root / "SpeechCommands" / "speech_commands_v0.02", each=6, words=COMMANDS)


@pytest.fixture
def load(ten, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(ten[0]))
    monkeypatch.setenv("BENCH_CACHE", str(ten[0] / "cache"))
    return lambda **options: SpeechCommands(words=10, **{"preprocessing": "clean", **options}).load(0)


def by_class(split):
    """The waves of a split with one clip of each class, in the order of the classes, (classes, length)."""
    return split.inputs[np.argsort(split.targets), :, 0]


def stacked(made, number):
    """The clips of one number of every word, (10, 16000), in -1..1."""
    clips = [samples for name, samples in made.items() if f"/{number:08x}" in name]
    return np.stack(clips) / 2**15


# Layout


@pytest.mark.parametrize("place", ["SpeechCommands", "SpeechCommands/speech_commands_v0.02"])
def test_both_roots_are_found_by_their_lists_which_give_the_splits(root, place):
    made = speech(root / place)
    data = SpeechCommands().load(0)
    for split in (data.train, data.validation, data.test):
        assert split.inputs.shape == (35, 16_000, 1)
        assert sorted(split.targets.tolist()) == list(range(35))
        assert (split.lengths == 16_000).all()
    assert (
        shared(data.train, data.validation) == shared(data.train, data.test) == shared(data.validation, data.test) == 0
    )
    # Undone, the paper's scaling gives the samples back: the class of each clip is the place of its word.
    train = np.stack([made[f"{word}/00000002_nohash_0.wav"] for word in WORDS]) / 2**30
    undone = data.test.inputs[:, :, 0] * (train.std(0) + 1e-5) + train.mean(0)
    wanted = np.stack([made[f"{WORDS[label]}/00000001_nohash_0.wav"] for label in data.test.targets]) / 2**30
    np.testing.assert_allclose(undone, wanted, rtol=0, atol=2e-12)  # float32 of values near 1, times 2e-5


def test_the_order_of_the_classes_is_that_of_public_checkpoints():
    assert len(set(WORDS)) == 35
    assert WORDS[:4] == ("bed", "cat", "down", "five")
    assert WORDS[16:19] == ("yes", "backward", "bird")
    assert WORDS[-1] == "zero"
    assert tuple(word for word in WORDS if word in COMMANDS) == COMMANDS


def test_clips_are_shuffled_though_their_folders_are_sorted_by_class(load):
    data = load()
    assert np.count_nonzero(np.diff(data.train.targets)) > 20  # 9 in the files
    assert load().checksum == data.checksum


def test_short_clips_end_in_silence_and_long_ones_are_cut(root):
    made = speech(root, words=COMMANDS, lengths=(15_000, 16_000, 17_000, 100))
    data = SpeechCommands(words=10, preprocessing="clean").load(0)
    fitted = {name: np.pad(clip[:16_000], (0, 16_000 - len(clip[:16_000]))) / 2**15 for name, clip in made.items()}
    train, test = (np.stack([fitted[f"{word}/{n:08x}_nohash_0.wav"] for word in COMMANDS]) for n in (2, 1))
    assert {len(clip) for name, clip in made.items() if "/00000001" in name} == {100, 15_000, 16_000, 17_000}
    assert (data.test.lengths == 16_000).all()
    np.testing.assert_allclose(by_class(data.test), (test - train.mean()) / train.std(), rtol=1e-5, atol=1e-6)


# Splits


def test_clean_ten_words_follow_the_lists_and_what_stands_in_two_splits_is_kept_in_the_later(root):
    speech(root, each=6, words=COMMANDS)
    for copy, clip in (("yes/00000003", "no/00000001"), ("up/00000004", "no/00000000"), ("up/00000000", "on/00000001")):
        put(root / f"{copy}_nohash_0.wav", (root / f"{clip}_nohash_0.wav").read_bytes())
    data = SpeechCommands(words=10, preprocessing="clean").load(0)
    assert [len(getattr(data, name)) for name in SPLITS] == [38, 9, 10]
    assert shared(data.test, data.train) == shared(data.test, data.validation) == 0
    assert shared(data.validation, data.train) == 0


def test_ten_words_as_published_are_whole_clips_split_by_class_not_by_the_lists(root):
    speech(root, each=20, words=COMMANDS, lengths=(16_000,) * 9 + (15_999,))
    data = SpeechCommands(words=10).load(0)
    assert [np.bincount(getattr(data, name).targets).tolist() for name in SPLITS] == [[13] * 10, [3] * 10, [2] * 10]
    parts = [getattr(data, name) for name in SPLITS]
    assert [shared(one, other) for one in parts for other in parts if one is not other] == [0] * 6


# Scaling


def test_clean_scaling_is_one_mean_and_sd_of_the_training_split(load, ten):
    data = load()
    np.testing.assert_allclose([data.train.inputs.mean(), data.train.inputs.std()], [0, 1], atol=1e-5)
    train = np.concatenate([stacked(ten[1], number) for number in range(2, 6)])
    wanted = (stacked(ten[1], 1) - train.mean()) / train.std()
    np.testing.assert_allclose(by_class(data.test), wanted, rtol=1e-5, atol=1e-6)


def test_published_scaling_is_by_time_step_and_its_epsilon_outweighs_the_sd(root):
    made = speech(root)
    data = SpeechCommands().load(0)
    train, test = (np.stack([made[f"{word}/{number:08x}_nohash_0.wav"] for word in WORDS]) / 2**15 for number in (2, 1))
    # In units of the wave in -1..1: 1e-5 * 2^15 = 0.32768 is added to the sd of each step.
    wanted = (test - train.mean(0)) / (train.std(0) + 0.32768)
    np.testing.assert_allclose(by_class(data.test), wanted, rtol=1e-5, atol=1e-6)
    assert data.train.inputs.std() < 0.7  # 1 for what is standardised


# Rates


def test_half_the_rate_is_every_second_sample_of_all_splits(load, ten):
    whole, half = load(), load(rate=8000)
    for name in SPLITS:
        one, other = getattr(whole, name), getattr(half, name)
        assert other.inputs.shape[1:] == (8000, 1)
        assert (other.lengths == 8000).all()
        assert np.array_equal(other.targets, one.targets)
    train = np.concatenate([stacked(ten[1], number)[:, ::2] for number in range(2, 6)])
    wanted = (stacked(ten[1], 1)[:, ::2] - train.mean()) / train.std()
    np.testing.assert_allclose(by_class(half.test), wanted, rtol=1e-5, atol=1e-6)


def test_zero_shot_halves_the_rate_of_test_alone_and_says_how_far_steps_lie_apart(load):
    whole, zero = load(), load(rate=8000, zero_shot=True)
    for name in ("train", "validation"):
        assert np.array_equal(getattr(zero, name).inputs, getattr(whole, name).inputs)
        assert (getattr(zero, name).lengths == 16_000).all()
    assert (zero.test.lengths == 8000).all()
    assert np.array_equal(zero.test.inputs[:, :8000], whole.test.inputs[:, ::2])
    assert not zero.test.inputs[:, 8000:].any()
    assert SpeechCommands(rate=8000, zero_shot=True).step_scale == 2.0
    assert SpeechCommands(rate=8000).step_scale == SpeechCommands().step_scale == 1.0


def test_the_published_figure_belongs_to_the_setting_it_was_measured_in():
    assert SpeechCommands().published == ("Speech Commands 35", "16 kHz")
    assert SpeechCommands(rate=8000, zero_shot=True).published == ("Speech Commands 35", "8 kHz zero-shot")
    for options in ({"words": 10}, {"rate": 8000}, {"inputs": "mfcc"}):
        assert SpeechCommands(**options).published is None
    assert dataclasses.replace(SpeechCommands(words=10), words=35).published is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"zero_shot": True}, "zero_shot=True needs rate=8000"),
        ({"zero_shot": "no", "rate": 8000}, "zero_shot must be False or True, not 'no'"),
        ({"rate": 4000}, "rate must be 16000 or 8000, not 4000"),
        ({"words": 12}, "words must be 35 or 10, not 12"),
        ({"inputs": "mel"}, "inputs must be raw or mfcc, not 'mel'"),
        ({"inputs": "mfcc", "rate": 8000}, "rate=8000 needs inputs=raw"),
        ({"preprocessing": "none"}, "preprocessing must be paper or clean, not 'none'"),
    ],
)
def test_wrong_options_are_refused(options, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        SpeechCommands(**options)


# Cepstral coefficients


def cepstrum(clip, rate):
    """The coefficients of one clip by the definition, band by band and frequency by frequency."""

    def mel(hertz):
        return 2595 * np.log10(1 + hertz / 700)

    mirrored = np.concatenate([clip[100:0:-1], clip, clip[-2:-102:-1]])
    bins = np.arange(101) * rate / 200
    edges = np.linspace(0, mel(rate / 2), 66)
    found = []
    for start in range(0, len(clip) + 1, 100):
        frame = mirrored[start : start + 200] * np.sin(np.pi * np.arange(200) / 200) ** 2
        spectrum = [abs(sum(frame * np.exp(-2j * np.pi * k * np.arange(200) / 200))) ** 2 for k in range(101)]
        logs = []
        for band in range(64):
            low, mid, high = (700 * (10 ** (edge / 2595) - 1) for edge in edges[band : band + 3])
            rising = [min((f - low) / (mid - low), (high - f) / (high - mid)) for f in bins]
            logs.append(np.log(sum(max(r, 0) * s for r, s in zip(rising, spectrum, strict=True)) + 1e-6))
        orthonormal = [np.sqrt((1 if k == 0 else 2) / 64) for k in range(20)]
        found.append([
            orthonormal[k] * sum(logs[n] * np.cos(np.pi * k * (2 * n + 1) / 128) for n in range(64)) for k in range(20)
        ])  # fmt: skip
    return np.array(found)


def test_coefficients_follow_their_definition():
    clips = np.random.default_rng(0).uniform(-1, 1, (2, 300))
    found = mfcc(clips, 16_000)
    assert found.shape == (2, 4, 20)
    assert found.dtype == np.float32
    for clip, coefficients in zip(clips, found, strict=True):
        np.testing.assert_allclose(coefficients, cepstrum(clip, 16_000), rtol=1e-5, atol=1e-5)  # float32


@pytest.mark.parametrize("preprocessing", ["paper", "clean"])
def test_clips_are_scaled_coefficients(load, ten, preprocessing):
    if preprocessing == "paper":
        data = load(inputs="mfcc", preprocessing="paper")
        np.testing.assert_allclose(data.train.inputs.std(0), 1, atol=1e-3)
        np.testing.assert_allclose(data.train.inputs.mean(0), 0, atol=1e-4)
    else:
        data = load(inputs="mfcc")
        train = np.concatenate([mfcc(stacked(ten[1], number), 16_000) for number in range(2, 6)]).astype(np.float64)
        wanted = (mfcc(stacked(ten[1], 1), 16_000) - train.mean((0, 1))) / train.std((0, 1))
        found = data.test.inputs[np.argsort(data.test.targets)]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)  # of numbers near 100 in float32
    assert data.train.inputs.shape[1:] == (161, 20)


# Malformed


@pytest.mark.parametrize(
    ("clip", "said"),
    [
        (wav(np.zeros(16_000), rate=8000), "16000 Hz is expected, not 1 of 2 at 8000 Hz"),
        (wav(np.zeros((16_000, 2)), channels=2), "16000 Hz is expected, not 2 of 2"),
        (wav(np.zeros(16_000))[:-1000], "cut off: 16000 samples are announced"),
        (b"RIFF", "no wave file"),
        (b"", "no wave file"),
    ],
)
def test_what_is_no_wave_of_this_kind_is_refused_by_name(root, clip, said):
    speech(root, words=COMMANDS)
    put(root / "stop" / "00000002_nohash_0.wav", clip)
    with pytest.raises(ValueError, match=rf"^stop/00000002_nohash_0\.wav: .*{said}"):
        SpeechCommands(words=10).load(0)


def test_lists_that_name_what_is_not_there_or_the_same_twice_are_refused_with_the_row(root):
    speech(root, words=COMMANDS)
    listed = (root / "testing_list.txt").read_text()
    for line, said in (
        ("yes/ffffffff_nohash_0.wav", "row 11: there is no clip 'yes/ffffffff_nohash_0.wav'"),
        ("yse/00000000_nohash_0.wav", "row 11: there is no clip"),
        ("yes/00000000_nohash_0.wav", r"row 11: yes/00000000_nohash_0\.wav is listed more than once"),
    ):
        (root / "testing_list.txt").write_text(listed + line + "\r\n")
        with pytest.raises(ValueError, match=rf"^testing_list\.txt, {said}"):
            SpeechCommands(words=10, preprocessing="clean").load(0)


def test_a_copy_without_one_of_the_words_is_refused(root):
    speech(root, words=COMMANDS)
    with pytest.raises(ValueError, match=r"^Speech Commands: no clips of 'bed' beside validation_list\.txt"):
        SpeechCommands().load(0)


def test_two_copies_are_refused_and_one_list_alone_is_no_copy(root):
    for name in ("one", "two"):
        speech(root / name, words=COMMANDS)
    with pytest.raises(ValueError, match=r"more than once .*: one and two"):
        SpeechCommands(words=10).load(0)
    for name in ("one", "two"):
        (root / name / "testing_list.txt").unlink()
    with pytest.raises(Missing, match=r"validation_list\.txt, testing_list\.txt: not found"):
        SpeechCommands(words=10).load(0)
