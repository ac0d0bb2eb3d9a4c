"""corrupt and attack on classifiers whose answers are known, on image models of transformers, on language models."""

import io
import json
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from scipy import stats
from transformers import (
    CLIPConfig,
    CLIPForImageClassification,
    CLIPVisionConfig,
    ImageGPTConfig,
    ImageGPTForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.efficientnet.image_processing_pil_efficientnet import EfficientNetImageProcessorPil
from typer.testing import CliRunner

from repflow.capture.influence.answer import answer_influence
from repflow.cli.main import app
from repflow.core.errors import ConfigChangedError, InputError
from repflow.core.intervals import paired_proportion_interval, proportion_interval
from repflow.core.results import Result
from repflow.interventions.corruption import Sequences, fill, lenders
from repflow.models import StackConfig, StackForSequenceClassification, load
from repflow.models import classifier as classifier_module
from repflow.models.classifier import Classifier, classifies, load_classifier
from repflow.report.terminal import view_of
from repflow.report.terminal.corrupt import _shown
from repflow.spec.corruption import RANDOM_PAIR, TARGET, Region
from repflow.studies.corrupt import attack, study
from repflow.studies.corrupt.classifier import Subject, open_subject
from repflow.studies.corrupt.config import AttackConfig, CorruptConfig, regions_of
from repflow.studies.corrupt.rates import attack_rates
from repflow.studies.corrupt.summary import accuracy_arrays
from repflow.studies.corrupt.text import _cut, equal_prompts, log_odds
from repflow.studies.engine.conformance import check_study
from repflow.studies.pixels.config import PixelsConfig
from repflow.tasks.pixels import Images, PixelLayout, load_images
from repflow.tasks.prompt import Prompt

COUNT = 40


class Last(Classifier):
    """Names the class by the brightness of the last token alone."""

    def __init__(self):
        self.network = SimpleNamespace(
            config=SimpleNamespace(num_labels=4, model_type="last"), device=torch.device("cpu")
        )
        self.name, self.spec, self.sequential, self.layout = "last", "live:last", False, PixelLayout()

    def logits(self, tokens, layout, shape):
        return -(tokens[:, -1, :1] - torch.arange(4) / 4).abs()


def subject(layout=None):
    pixels = np.random.default_rng(0).integers(0, 256, (COUNT, 4, 4, 1)).astype(np.uint8)
    labels = np.arange(COUNT) % 4
    pixels[:, -1, -1, 0] = np.round(255 * labels / 4)
    return Subject.of(Last(), Images.checked(pixels, labels), layout or PixelLayout(), batch=16)


def measured(**options):
    own = subject()
    config = CorruptConfig(
        samples=COUNT, replace=["normal", "same", "other", "mean", "target:2"], regions=["0:4", "12:16"], **options
    )
    return study.STUDY.compute(study.CorruptJob(config, {}, None, 10, subject=own), Memory(), None)


class Memory:
    """A sink in memory."""

    def __init__(self):
        self.kept = {}

    def has(self, name):
        return name in self.kept

    def keep(self, name, arrays, meta):
        self.kept[name] = arrays

    def load(self, name):
        return self.kept[name]


def printed(name, result):
    """What the terminal shows."""
    console = Console(width=200, file=io.StringIO())
    for part in view_of(name).view(result):
        console.print(part)
    return console.file.getvalue()


def test_a_model_that_reads_the_last_token_alone(monkeypatch):
    monkeypatch.setattr(Last, "facts", lambda self: {"name": "last"})
    result = measured(draws=3)
    assert float(result["clean_accuracy"]) == 1
    assert (result["accuracy"][:, 0] == 1).all()  # nothing depends on the first row
    by = dict(zip(result.provenance["replacements"], result["accuracy"][:, 1], strict=True))
    assert by["same"] == 1
    assert by["other"] == 0
    assert 0 < by["normal"] < 0.6
    assert by["target:2"] == 0.25  # all are named 2 now
    assert by["mean"] == 0.25  # always the same class
    assert result["corrected_drop"][3, 1] == 1  # all there was to lose
    assert result["relative_drop"][3, 1] == 0.75
    assert result["predicted"].sum(-1) == pytest.approx(1)
    assert result["examples"].shape == (6, 2, 4, 4, 1)
    assert (result["influence"] > 0).tolist() == [False] * 15 + [True]
    assert (result["examples"][2, 0, -1, -1] == result["examples"][0, 0, -1, -1]).all()
    assert "last: accuracy (%)" in printed("corrupt", result)


def test_regions_beside_windows_are_all_in_the_table():
    windows, named = [f"{at}:{at + 32}" for at in range(0, 1024, 32)], ["928:1024", "0:96", "1014:1024", "0:10"]
    shown = [*windows, *named]
    places = _shown(Mock(spec=Result, provenance={"regions": shown}))
    assert [shown[place] for place in places][-4:] == named
    assert len(places) == 16
    assert (shown[places[0]], shown[places[11]]) == ("0:32", "992:1024")
    assert _shown(Mock(spec=Result, provenance={"regions": named})) == [0, 1, 2, 3]


def test_attacks_through_the_last_token_alone(monkeypatch):
    monkeypatch.setattr(Last, "facts", lambda self: {"name": "last"})
    config = AttackConfig(samples=COUNT, regions=["0:4", "12:16"], targets=["1", "3"], draws=2)
    result = attack.STUDY.compute(study.CorruptJob(config, {}, None, 4, subject=subject()), Memory(), None)
    assert result["success"].tolist() == [[0, 1], [0, 1]]
    assert result["base_rate"].tolist() == [0, 0]
    assert result["random_pair"].tolist() == [[0, 0], [0, 0]]  # of images of other classes none names the target
    assert result["mean_success"].tolist() == [0, 1]
    before, target, pair = result["examples"]  # the class of an image of this set is its last pixel, by 64
    assert (before[..., -1, -1, 0] // 64).tolist() == [0, 2]  # the first that are not of the target, 1
    assert (np.round(target[..., -1, -1, 0] / 64)).tolist() == [1, 1]
    assert 1 not in np.round(pair[..., -1, -1, 0] / 64)
    assert (target[:, :3] == before[:, :3]).all()
    assert (
        result.provenance["attack"] | {"example_region": "12:16", "example_target": "1"}
        == (result.provenance["attack"])
    )
    named = [attack._targets(AttackConfig(samples=COUNT, targets=words), subject()) for words in ([], ["all"])]
    assert named[0] == named[1] == list(range(len(subject().images.classes)))
    asked = [AttackConfig("folder", targets=words) for words in ([], ["all"], ["1"])]
    assert attack.run_name(asked[0]) == attack.run_name(asked[1]) != attack.run_name(asked[2])
    assert result["excess_low"][0, 1] < 1  # thirty of thirty do not prove that it always works
    assert 0 < result["base_rate_high"][0] < 0.2
    shown = printed("attack", result)
    assert "40 images of 16 tokens, row order, accuracy 100.0 %" in shown
    read = measured(draws=2).provenance["corrupt"]
    assert {name for name in read if name not in result.provenance["attack"]} == set()  # the same words for the same
    assert result.provenance["attack"]["chance"] == read["chance"] == 0.25
    assert result.provenance["attack"]["draws"] == read["draws"] == 2


def test_all_replacements_are_shown_in_a_narrow_terminal(folder):
    """Of the six that are usual, 80 columns hold three."""
    words = ["--images", "drawn:8", "--samples", "20", "--regions", "last:4", "--influence", "0"]
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["corrupt", folder, *words, "--out", f"{folder}-runs"])
    assert "not shown" not in done.output
    assert all(f" {kind}" in done.output for kind in ("normal", "data", "shuffle", "mean", "same", "other"))
    assert " ".join(done.output.split()).count("20 images of 64 tokens") == 1


def test_all_regions_of_attacks_are_shown_in_a_narrow_terminal(folder):
    """Those that were left out were named below the table, without a number."""
    words = ["--images", "drawn:8", "--samples", "20", "--regions", "paper,fewer", "--targets", "disc"]
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["attack", folder, *words, "--out", f"{folder}-runs"])
    assert "not shown" not in done.output
    assert all(done.output.count(f" {region}") == 1 for region in PAPER_OF_64[:4])
    assert " ".join(done.output.split()).count("what is above the rate") == 1


def test_the_paper_s_regions_of_attacks_are_those_of_its_figure(folder):
    """As `repflow pixels --attack-regions` has them, and as is usual: one request, under one name."""
    usual, named = (AttackConfig(model=folder, images="drawn:8", regions=words) for words in ([], ["paper"]))
    assert usual == named
    result = attack.run(
        AttackConfig(**SMALL | {"regions": ["paper", "last:2"]}, targets=["two"]),
        subject=load_classifier(folder, device="cpu").network,
    )
    grid = PixelsConfig(targets=["two"], attack_regions=["paper", "last:2"])
    assert result.provenance["regions"] == [str(region) for region in grid.attacked(64)] == PAPER_OF_64
    assert "recency-fig3" in result.config["regions"]  # not `paper`, which stood for the tables in stored runs
    tables = attack.run(
        AttackConfig(**SMALL | {"regions": ["recency-table1"]}), subject=load_classifier(folder, device="cpu").network
    )
    assert tables.provenance["regions"] == ["62:64", "0:2", "58:64", "0:6"]


class Lost(Last):
    """Its answers are NaN where the first token is darker than half."""

    def logits(self, tokens, layout, shape):
        named = super().logits(tokens, layout, shape)
        return torch.where(tokens[:, :1, 0] < 0.5, torch.nan, named)


def test_answers_that_are_no_numbers_name_no_class(monkeypatch):
    """torch.argmax of NaN is the place of a NaN: the first class was named, and attacks on it always succeeded."""
    monkeypatch.setattr(Last, "facts", lambda self: {"name": "last"})
    plain = subject()
    pixels = plain.images.pixels.copy()
    pixels[:10, 0, 0] = 0
    pixels[10:, 0, 0] = 255
    lost = Subject.of(Lost(), Images.checked(pixels, plain.images.labels), PixelLayout())
    assert (lost.predictions()[:10] == -1).all()
    job = {"models": {}, "prompts": None, "total": 1, "subject": lost}
    config = AttackConfig(samples=COUNT, regions=["12:16"], targets=["0"])
    result = attack.STUDY.compute(study.CorruptJob(config, **job), Memory(), None)
    assert result["base_rate"] == 0
    config = CorruptConfig(samples=COUNT, regions=["0:1"], replace=["target:0"], influence=0)
    result = study.STUDY.compute(study.CorruptJob(config, **job), Memory(), None)
    assert float(result["clean_accuracy"]) == 0.75
    assert [finding.code for finding in result.findings] == ["nonfinite_answer"]
    assert "NaN or infinite for 10 of 40 images as they are" in printed("corrupt", result)


@pytest.mark.parametrize("name", ["corrupt", "attack"])
def test_a_model_that_has_not_learned_is_called_so(name, folder, tmp_path):
    """Its accuracy cannot fall: that no region is shown to lower it says nothing of any region."""
    words = [name, folder, "--images", "drawn:8", "--samples", "20", "--regions", "last:8"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    shown = " ".join(done.output.split())
    assert "not_learned: 10.0 % of the images are named rightly, where naming one class always gives 10.0 %" in shown
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "page.html")])
    assert done.exit_code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Mind: 10.0 % of the images are named rightly" in page
    assert ("No attack is shown to do more than pixels of any other class." in page) == (name == "attack")


def test_drops_and_their_intervals():
    """Against leaving out one image after the other (jackknife)."""
    random = np.random.default_rng(1)
    before = (random.random(400) < 0.7).astype(float)
    after = before * (random.random(400) < 0.6)
    arrays, _ = accuracy_arrays(before, after[None, None], 0.1)

    def ratio(keep, chance):
        return (before[keep].mean() - after[keep].mean()) / (before[keep].mean() - chance)

    for name, chance in (("relative_drop", 0.0), ("corrected_drop", 0.1)):
        whole = ratio(np.ones(400, bool), chance)
        assert arrays[name][0, 0] == pytest.approx(whole)
        left = np.array([ratio(np.arange(400) != n, chance) for n in range(400)])
        spread = np.sqrt(399 / 400 * ((left - left.mean()) ** 2).sum())
        half = (arrays[f"{name}_high"] - arrays[f"{name}_low"])[0, 0] / 2
        assert half == pytest.approx(1.966 * spread, rel=0.02)


def test_no_change_at_all_has_an_interval():
    """Where every image is named once, the interval is that of paired proportions but for Student's quantile."""
    before = np.repeat([1.0, 0.0], [40, 20])
    for after in (before, np.repeat([1.0, 0.0, 1.0, 0.0], [30, 10, 3, 17])):
        arrays, _ = accuracy_arrays(before, after[None, None], 0.1)
        band = paired_proportion_interval(before, after)
        assert arrays["drop"][0, 0] == band.mean
        halves = (arrays["drop_high"] - arrays["drop_low"])[0, 0], band.high - band.low
        assert halves[0] == pytest.approx(halves[1] * 2.0 / 1.96, rel=0.02)
        assert arrays["drop_low"][0, 0] < band.mean < arrays["drop_high"][0, 0]


def made_attack(random, rate, *, classes=5, images=200, draws=1, spread=1.0, pair=None):
    """Attacks whose rates are known; images that lend their pixels differ in how often they steer, by `spread`."""
    labels = random.permutation(np.arange(images) % classes)
    others = labels != np.arange(classes)[:, None]
    hits, lent = {}, {}
    for kind, level in ((TARGET, rate), (RANDOM_PAIR, rate if pair is None else pair)):
        lent[kind] = np.empty((classes, 1, draws, images), dtype=int)
        for target in range(classes):
            own = np.flatnonzero((labels == target) == (kind == TARGET))
            lent[kind][target] = own[random.integers(0, len(own), (draws, images))]
        place = spread * random.standard_normal(images)[lent[kind]] + 0.5 * random.standard_normal(images)
        place = place + random.standard_normal(place.shape)
        hits[kind] = (place < stats.norm.ppf(level) * np.sqrt(1.25 + spread**2)).astype(int)
    base = random.integers(0, 2, (classes, images)).astype(float)
    return attack_rates(base, hits, lent, others), hits, base, labels


@pytest.mark.parametrize("draws", [1, 3])
def test_rates_of_all_targets_are_the_mean_of_their_rates(draws):
    (arrays, axes), hits, base, labels = made_attack(np.random.default_rng(0), 0.3, draws=draws)
    by_hand = [hits[TARGET][t, 0][:, labels != t].mean() for t in range(5)]
    assert arrays["success"][:, 0] == pytest.approx(by_hand)
    assert arrays["mean_success"] == pytest.approx(np.mean(by_hand))
    assert arrays["mean_base_rate"] == pytest.approx(np.mean([base[t, labels != t].mean() for t in range(5)]))
    assert axes["mean_success_low"] == ("region",)
    assert axes["success_low"] == ("target", "region")
    assert arrays["excess"] == pytest.approx(arrays["success"] - arrays["random_pair"])
    for name in ("success", "random_pair", "excess", "mean_success", "base_rate"):
        assert (arrays[f"{name}_low"] <= arrays[name]).all()
        assert (arrays[name] <= arrays[f"{name}_high"]).all()


@pytest.mark.parametrize("classes", [40, 50])
def test_a_handful_of_lenders_widens_the_interval(classes):
    """Four or five images of a class lend their pixels to nearly 200: added images give t no freedom."""
    random = np.random.default_rng(0)
    held = []
    for _ in range(12):
        (arrays, _), *_ = made_attack(random, 0.3, classes=classes, spread=0.7)
        held += ((arrays["success_low"] <= 0.3) & (arrays["success_high"] >= 0.3)).ravel().tolist()
    assert np.mean(held) >= 0.88


@pytest.mark.parametrize(("rate", "draws"), [(0.03, 1), (0.3, 1), (0.3, 3)])
def test_intervals_of_attacks_cover_other_lenders(rate, draws):
    """40 images of a class lend their pixels to 160: Wilson's interval, which counts those, covers far less."""
    random = np.random.default_rng(0)
    held, trials = dict.fromkeys(("success", "mean_success", "mean_excess", "wilson"), 0), 300
    for _ in range(trials):
        (arrays, _), *_ = made_attack(random, rate, draws=draws, pair=0.5 * rate)
        for name, true in (("success", rate), ("mean_success", rate), ("mean_excess", 0.5 * rate)):
            held[name] += arrays[f"{name}_low"].flat[0] <= true <= arrays[f"{name}_high"].flat[0]
        wilson = proportion_interval(arrays["success"][0, 0] * 160, 160)
        held["wilson"] += wilson.low <= rate <= wilson.high
    assert min(held[name] for name in ("success", "mean_success", "mean_excess")) >= 0.91 * trials, held
    assert rate < 0.1 or draws > 1 or held["wilson"] < 0.86 * trials


def test_too_few_lenders_have_no_interval_and_nothing_seen_has_one():
    others = np.ones((1, 60), dtype=bool)
    none = np.zeros((1, 1, 1, 60), dtype=int)
    two = {kind: np.arange(60)[None, None, None] % 2 for kind in (TARGET, RANDOM_PAIR)}
    arrays, _ = attack_rates(np.zeros((1, 60)), dict.fromkeys(two, none), two, others)
    assert np.isnan(arrays["success_low"]).all()
    many = {kind: np.arange(60)[None, None, None] for kind in two}
    arrays, _ = attack_rates(np.zeros((1, 60)), dict.fromkeys(two, none), many, others)
    assert arrays["success_low"] == arrays["success"] == 0
    assert arrays["success_high"] > 0.01, "nothing seen of 60 is not known to be nothing"
    assert arrays["base_rate_high"] > 0.01


def test_text_reads_fewer_prompts_than_images_unless_told(folder):
    """256 images take seconds; a hundred passes over as many prompts take an hour of a laptop."""
    models = {"model": load("zoo:mamba2")}
    job = study.STUDY.prepare(CorruptConfig("zoo:mamba2", task="random", length=40), models, None, None)
    assert (len(job.prompts), job.config.samples) == (32, 32)
    asked = CorruptConfig("zoo:mamba2", task="random", length=40, samples=5)
    assert len(study.STUDY.prepare(asked, models, None, None).prompts) == 5
    for kind, config in ((study.STUDY, CorruptConfig), (attack.STUDY, AttackConfig)):
        request = config(folder, images="drawn:8")
        job = kind.prepare(request, {}, None, None)
        assert (len(job.subject.images), job.config.samples) == (256, 256)
        assert kind.reads(request)[0] % 256 == 0
        names = [kind.names(config(folder, images="drawn:8", samples=count)) for count in (None, 256, 255)]
        assert names[0] == names[1] != names[2]


def test_usual_regions_that_do_not_fit_are_left_out():
    """Asked for by name they are refused; by default a short sequence has its windows."""
    assert [str(region) for region in regions_of(CorruptConfig(), 1024)][-1] == "992:1024"
    assert {len(region) for region in regions_of(CorruptConfig(), 20)} == {1}
    with pytest.raises(InputError, match="inside of 20 tokens; got 'first:32'"):
        regions_of(CorruptConfig(regions=["first:32"]), 20)


def test_lenders_are_the_images_that_fill_takes():
    random = np.random.default_rng(0)
    tokens = random.integers(0, 256, (30, 8, 1), dtype=np.uint8)
    sequences = Sequences(tokens, np.arange(30) % 3, 3)
    region = Region(2, 5)
    for kind, target in ((TARGET, 1), (RANDOM_PAIR, 1), ("same", None), ("other", None)):
        draw = {"seed": 3, "draw": 1, "target": target}
        whose = lenders(sequences, region, kind, **draw)
        assert fill(sequences, region, kind, **draw) * 255 == pytest.approx(tokens[whose, 2:5])


def test_influence_is_the_slope_of_the_log_odds(folder):
    """Against differences of the log-odds of the named class, pixel by pixel, in float64."""
    classifier = load_classifier(folder, device="cpu", dtype="float64")
    pixels = torch.rand(2, 16, 1, dtype=torch.float64)

    def odds(values):
        with torch.no_grad():
            share = classifier.logits(values, classifier.layout, (4, 4, 1)).softmax(-1)
        return (share / (1 - share)).log()[torch.arange(2), named]

    named = classifier.logits(pixels, classifier.layout, (4, 4, 1)).argmax(-1)
    influence = answer_influence(classifier, pixels, classifier.layout, (4, 4, 1))
    for token in (0, 7, 15):
        step = torch.zeros_like(pixels)
        step[:, token] = 1e-5
        slope = (odds(pixels + step) - odds(pixels - step)).abs() / 2e-5
        assert influence[:, token] == pytest.approx(slope.numpy(), rel=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = StackConfig(
        mixers=[{"name": "s6", "state": 4}], hidden_size=8, vocab_size=257, input_channels=1, input_range=[0, 1],
        num_labels=10, class_token="end", bidirectional=True, pixel_layout={"order": "snake", "grey": True},
    )  # fmt: skip
    StackForSequenceClassification(config).save_pretrained(place)
    return str(place)


PAPER_OF_64 = ["0:16", "48:64", "0:30", "34:64", "62:64"]
SMALL = {"images": "drawn:8", "samples": 20, "regions": ["last:8", "0:8"]}


def test_studies_keep_their_promises(folder):
    check_study(study.STUDY, CorruptConfig(model=folder, **SMALL, replace=["normal", "same"]))
    check_study(attack.STUDY, AttackConfig(model=folder, **SMALL, targets=["dots"]))


def test_a_folder_brings_its_own_layout(folder):
    classifier = load_classifier(folder, device="cpu")
    assert (classifier.layout.order, classifier.layout.grey) == ("snake", True)
    result = study.run(CorruptConfig(**SMALL, replace=["mean"]), subject=classifier.network)
    assert result.provenance["corrupt"]["layout"] == {"order": "snake", "grey": True, "patch": 1}


def test_an_image_classifier_of_transformers(tmp_path, capfd):
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8,
        num_labels=10,
    )  # fmt: skip
    network = ViTForImageClassification(config).eval()
    network.save_pretrained(tmp_path)
    pixel_range = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(pixel_range), encoding="utf-8")
    assert classifies(str(tmp_path))
    capfd.readouterr()
    classifier = load_classifier(str(tmp_path), device="cpu")
    assert capfd.readouterr().err == ""  # no progress bar over the weights
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3)).astype(np.uint8)
    layout = PixelLayout("hilbert", patch=2)
    tokens = torch.from_numpy(layout.sequence(pixels)).float() / 255
    values = (torch.from_numpy(pixels).float() / 255 - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([0.5, 0.6, 0.7])
    with torch.no_grad():
        expected = network(pixel_values=values.permute(0, 3, 1, 2)).logits
    assert torch.allclose(classifier.logits(tokens, layout, (16, 16, 3)), expected, atol=1e-5)
    result = study.run(CorruptConfig(model=str(tmp_path), images="drawn:8", samples=20, regions=["windows:32"]))
    assert result["accuracy"].shape == (6, 2)


def test_images_have_the_size_that_a_model_was_trained_on(tmp_path):
    """A network that takes any size, whose preprocessor says which: read as pictures enlarged by hand."""
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8], "depths": [1], "layer_type": "basic"}
    network = ResNetForImageClassification(ResNetConfig(**sizes, num_labels=10)).eval()
    network.save_pretrained(tmp_path)
    facts = {"do_normalize": False, "size": {"shortest_edge": 24}, "crop_size": {"height": 20, "width": 16}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(facts | {"do_center_crop": True}), encoding="utf-8")
    tokens = torch.rand(2, 64, 3)
    picture = tokens.view(2, 8, 8, 3).permute(0, 3, 1, 2)
    larger = torch.nn.functional.interpolate(picture, (20, 16), mode="bilinear", antialias=True)
    with torch.no_grad():
        logits = load_classifier(str(tmp_path), device="cpu").logits(tokens, PixelLayout(), (8, 8, 3))
        assert torch.allclose(logits, network(pixel_values=larger).logits, atol=1e-5)
        assert not torch.allclose(logits, network(pixel_values=picture).logits, atol=1e-5)


def test_too_few_images_to_lend_are_refused_before_any_is_read(folder, tmp_path):
    asked = CorruptConfig(model=folder, **SMALL | {"samples": 12}, replace=["normal", "same"])
    with pytest.raises(InputError, match=r"at least 2 images of every class.*raise samples"):
        study.run(asked, out=tmp_path / "runs")
    assert not list(tmp_path.rglob("*.safetensors"))


def test_networks_that_read_no_pictures_of_this_size_are_refused(tmp_path):
    """CLIP has its size in a part of its configuration; ImageGPT reads ids of colours."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    vision = CLIPVisionConfig(**sizes, image_size=16, patch_size=8, projection_dim=8)
    clip = CLIPForImageClassification(CLIPConfig(vision_config=vision.to_dict(), text_config=sizes, num_labels=10))
    clip.eval().save_pretrained(tmp_path / "clip")
    asked = {"images": "drawn:8", "samples": 20, "regions": ["last:4"], "replace": ["mean"]}
    assert study.run(CorruptConfig(str(tmp_path / "clip"), **asked))["accuracy"].shape == (1, 1)
    colours = ImageGPTConfig(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=64, num_labels=10)
    ImageGPTForImageClassification(colours).save_pretrained(tmp_path / "gpt")
    with pytest.raises(InputError, match="takes pixel_values"):
        study.run(CorruptConfig(str(tmp_path / "gpt"), **asked))


def test_classes_are_matched_by_their_names(tmp_path):
    """A model that numbers the same classes in another order names as many images rightly."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    sizes["initializer_range"] = 1.0  # so that it names different classes
    config = ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=10, num_channels=1)
    network = ViTForImageClassification(config).eval()
    network.save_pretrained(tmp_path / "numbered")
    classes = load_images("drawn:8", train=1, test=20).classes
    turned = classes[::-1]
    network.config.id2label = dict(enumerate(turned))
    network.classifier.weight.data = network.classifier.weight.data.flip(0)
    network.save_pretrained(tmp_path / "named")
    (tmp_path / "named" / "preprocessor_config.json").write_text('{"image_mean": [0.5], "image_std": [0.5]}')
    asked = {"images": "drawn:8", "samples": 40, "regions": ["last:4"], "replace": ["normal"]}
    numbered, named = (study.run(CorruptConfig(model=str(tmp_path / kind), **asked)) for kind in ("numbered", "named"))
    assert named["accuracy"].tolist() == numbered["accuracy"].tolist()
    assert named["predicted"].tolist() == numbered["predicted"][..., ::-1].tolist()
    assert (numbered["predicted"] > 0).any(0).sum() > 2
    network.config.id2label = dict(enumerate(("other", *turned[1:])))
    network.save_pretrained(tmp_path / "crossed")
    with pytest.raises(InputError, match="as class 8 of the images and 1 of the model"):
        study.run(CorruptConfig(model=str(tmp_path / "crossed"), **asked))


def tiny_vit(place, **more):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    network = ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, **more)).eval()
    network.save_pretrained(place)
    return network


def test_another_preprocessor_is_another_model(tmp_path):
    """The same command after a change of the file gives no stored numbers of before."""
    tiny_vit(tmp_path / "model", num_labels=10)
    asked = CorruptConfig(str(tmp_path / "model"), images="drawn:8", samples=10, regions=["last:4"], replace=["mean"])
    file = tmp_path / "model" / "preprocessor_config.json"
    file.write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5]}', encoding="utf-8")
    first = study.run(asked, out=tmp_path / "runs")
    assert study.run(asked, out=tmp_path / "runs")["accuracy"].tolist() == first["accuracy"].tolist()
    file.write_text('{"image_mean": [0.1, 0.5, 0.5], "image_std": [0.5]}', encoding="utf-8")
    with pytest.raises(ConfigChangedError, match=r"config\.pixels\.image_mean"):
        study.run(asked, out=tmp_path / "runs")


@pytest.mark.parametrize(
    ("facts", "match"),
    [
        ({"do_flip_channel_order": True}, "blue, green, red"),
        ({"do_rescale": False}, "not divided by 255"),
        ({"rescale_factor": 0.5}, "rescale_factor of 0.5"),
        ({"rescale_offset": True}, "between -1 and 1"),
        ({"image_std": [0.0, 1.0, 1.0]}, "none of them 0"),
        ({"image_mean": ["a", 1, 2]}, "finite numbers in image_mean"),
        ({"image_mean": None}, "finite numbers in image_mean.*got none"),
    ],
)
def test_preprocessors_that_would_be_read_wrongly_are_refused(tmp_path, facts, match):
    tiny_vit(tmp_path, num_labels=10)
    file = tmp_path / "preprocessor_config.json"
    right = {"rescale_factor": 0.00392156862745098, "image_mean": [0.5], "image_std": [0.5]}
    file.write_text(json.dumps(right), encoding="utf-8")
    load_classifier(str(tmp_path), device="cpu")
    file.write_text(json.dumps(right | facts), encoding="utf-8")
    with pytest.raises(InputError, match=match):
        load_classifier(str(tmp_path), device="cpu")


@pytest.mark.parametrize("options", [{}, {"include_top": False}, {"do_normalize": False}, {"do_normalize": None}])
def test_an_efficientnet_reads_pixels_as_its_own_preprocessor_has_them(tmp_path, options):
    """It divides by the spread twice unless told otherwise, once where it does not normalise."""
    processor = EfficientNetImageProcessorPil(do_resize=False, image_std=[0.4, 0.5, 0.6], **options)
    processor.save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    if not options:  # as written before the option was there
        file.write_text(json.dumps({k: v for k, v in processor.to_dict().items() if k != "include_top"}))
    network = tiny_vit(tmp_path, num_labels=10)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype(np.uint8)
    with torch.no_grad():
        expected = network(processor(list(pixels), return_tensors="pt")["pixel_values"]).logits
        tokens = torch.from_numpy(PixelLayout().sequence(pixels)).float() / 255
        logits = load_classifier(str(tmp_path), device="cpu").logits(tokens, PixelLayout(), (8, 8, 3))
    assert torch.allclose(logits, expected, atol=1e-5)


def test_a_hub_id_has_its_preprocessor(tmp_path, monkeypatch):
    tiny_vit(tmp_path / "vit", num_labels=10)
    file = tmp_path / "preprocessor_config.json"
    file.write_text('{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5]}', encoding="utf-8")
    asked = []

    def cached(name, wanted, **options):
        asked.append((name, wanted, options["revision"]))
        return str(file)

    monkeypatch.setattr(classifier_module, "cached_file", cached)
    options = {"revision": "main", "local_files_only": True}
    found = classifier_module._preprocessor("some/vit", options)
    assert classifier_module._pixel_range(found)["image_mean"] == [0.1, 0.2, 0.3]
    assert asked == [("some/vit", "preprocessor_config.json", "main")]
    monkeypatch.setattr(classifier_module, "cached_file", lambda *_, **__: (_ for _ in ()).throw(OSError("none")))
    assert classifier_module._preprocessor("some/vit", options) is None


def test_classes_called_by_numbers_have_their_numbers(tmp_path):
    """Folders stand in the order of letters, 0, 1, 10, 11, 2; the model's classes in that of numbers."""
    tiny_vit(tmp_path / "model", num_labels=12, id2label={number: str(number) for number in range(12)})
    for number in range(12):
        for part in ("train", "test"):
            place = tmp_path / "images" / part / str(number)
            place.mkdir(parents=True)
            Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(place / "a.png")
    opened = open_subject(CorruptConfig(str(tmp_path / "model"), images=str(tmp_path / "images")))
    assert opened.images.classes == tuple(str(number) for number in range(12))
    assert (opened.images.pixels[:, 0, 0, 0] == 20 * opened.images.labels).all()


def test_classes_with_any_name_can_be_targets(folder, tmp_path):
    """Names of stored parts are made of theirs."""
    random = np.random.default_rng(0)
    own = {"images": random.integers(0, 256, (40, 8, 8)).astype(np.uint8), "labels": np.arange(40) % 10}
    names = ["a/b", "a-b", "[red]c[/red]", "d:e", *"fghijk"]
    np.savez(tmp_path / "x.npz", classes=names, test_images=own["images"], test_labels=own["labels"], **own)
    asked = [f"target:{name}" for name in names[:4]]
    config = CorruptConfig(folder, images=str(tmp_path / "x.npz"), regions=["last:8"], replace=asked, influence=0)
    result = study.STUDY.run(config, out=tmp_path / "runs")
    assert result["accuracy"].shape == (4, 1)


def test_reading_images_warns_of_nothing(folder, recwarn):
    study.STUDY.run(CorruptConfig(folder, **{**SMALL, "samples": 4}, replace=["mean"], influence=0, batch_size=1))
    assert not [entry for entry in recwarn if "writable" in str(entry.message)]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("row", "pixel_layout of .* as an object with order, grey, patch; got 'row'"),
        ({"foo": 1}, "pixel_layout of"),
        ({"order": 3}, "an order of pixels among"),
        ({"patch": "2"}, "patch as a whole number; got False and '2'"),
        ({"patch": 2.5}, "patch as a whole number"),
    ],
)
def test_a_layout_that_is_none_is_refused(folder, tmp_path, layout, words):
    place = shutil.copytree(folder, tmp_path / "model")
    own = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**own, "pixel_layout": layout}))
    with pytest.raises(InputError, match=words):
        load_classifier(str(place), device="cpu")


@pytest.mark.parametrize(
    "options", [{"class_token": 5}, {"class_token": True}, {"input_range": "ab"}, {"input_range": 5}]
)
def test_wrong_options_of_a_classifier_are_refused(options):
    with pytest.raises(InputError):
        StackConfig(num_hidden_layers=1, input_channels=3, bidirectional=True, **options)


def test_log_odds_of_a_language_model():
    model = load("zoo:gpt-neox")
    config = CorruptConfig(task="kvpr", length=200, samples=3)
    prompts, answers = equal_prompts(config, model)
    assert len(set(prompts.lengths)) == 1
    begun = Prompt((7, 1, 2, 3), begins=True)
    assert _cut(begun, begun.ids, 3) == (7, 2, 3)
    assert _cut(Prompt((7, 1, 2)), (7, 1, 2), 3) == (7, 1, 2)
    ids = torch.tensor([prompt.ids for prompt in prompts])
    with torch.no_grad():
        share = model.network(ids).logits[:, -1].double().softmax(-1)[torch.arange(3), list(answers)]
    odds = log_odds(model, ids.numpy(), answers)
    assert odds == pytest.approx((share / (1 - share)).log().numpy(), abs=1e-3)
    assert all(model.tokenizer.decode([a]).strip() and p.answers[0].startswith(model.tokenizer.decode([a]).strip())
               for a, p in zip(answers, prompts, strict=True))  # fmt: skip
    config.regions, config.replace = ["first:8", "last:8"], ["random", "other"]
    result = study.STUDY.run(config, models={"model": model})
    assert result["log_odds_change"].shape == (2, 2, 3)
    assert result["log_odds_change"][1, 0] == pytest.approx(0, abs=1e-3)  # all prompts begin alike
    assert view_of("corrupt").view(result)
    plain, following = equal_prompts(CorruptConfig(task="random", length=12, samples=2), model)
    assert plain.lengths == (11, 11)
    assert len(following) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("corrupt FOLDER --images drawn:8 --regions 60:70", "a region inside of 64 tokens"),
        ("corrupt FOLDER --images drawn:8 --regions x", "a region START:END"),
        ("corrupt FOLDER --images drawn:8 --replace random --samples 20", "--replace normal, data"),
        ("corrupt FOLDER --images drawn:8 --replace shufle", "did you mean"),
        ("corrupt FOLDER --images nowhere", "which is not there"),
        ("corrupt FOLDER --images drawn:8 --patch 2", "tokens of 1 channels"),
        ("corrupt FOLDER --images drawn:8 --order spiral", "an order of pixels among row"),
        ("corrupt FOLDER --images drawn:8 --init default", "as it was trained"),
        ("corrupt FOLDER --images drawn:8 --draws 0", "--draws"),
        ("corrupt FOLDER --images drawn:8 --replace target:frog", "a class among disc"),
        ("corrupt FOLDER --images drawn:8 --replace target:two --samples 3 --regions 0:2", "of the target class"),
        ("corrupt FOLDER --images drawn:8 --regions recency-table9", "a region START:END"),
        ("corrupt FOLDER --images drawn:8 --influence -1", "--influence"),
        ("corrupt FOLDER --images drawn:8 --regions 60:70", "name tokens from 0 to 64, such as first:2 and last:2"),
        ("corrupt FOLDER --images drawn:8 --replace target:dics", "did you mean disc?"),
        ("corrupt FOLDER --images drawn:8 --replace target:", "other, random, target:CLASS; got 'target:'"),
        ("corrupt FOLDER --images drawn:8 --replace target:disc,target:0", "different targets; got disc,0"),
        ("corrupt zoo:gpt-neox --task random --length 40 --samples 1 --regions 0:4", "at least 2 prompts"),
        ("corrupt zoo:gpt-neox --influence 3", "--influence for zoo:gpt-neox, a language model"),
        ("attack FOLDER --images drawn:8 --targets all,disc", "--targets all, or some classes; got all,disc"),
        ("attack FOLDER --images drawn:8 --targets " + "9" * 5000, "a class among disc"),
        ("attack FOLDER --images drawn:" + "9" * 5000, "drawn:SIDE with 8 to 256"),
        ("attack FOLDER --images drawn:8 --targets frog", "a class among disc"),
        ("attack FOLDER --images drawn:8 --targets 3 --samples 3", "test images of cross and of other classes"),
        ("attack FOLDER --images drawn:8 --task kvpr", "repflow corrupt replaces tokens"),
        ("attack zoo:gpt-neox", "a classifier of images"),
        ("corrupt zoo:gpt-neox --task pixels", "a classifier for --task pixels"),
        ("corrupt zoo:gpt-neox --images drawn:8", "--images for zoo:gpt-neox, a language model"),
        ("corrupt FOLDER --images drawn:8 --task kvpr", "--task auto or pixels"),
        ("corrupt FOLDER --images drawn:8 --task text", "--task auto or pixels"),
        ("corrupt FOLDER --images drawn:8 --text nowhere.txt", "--text for"),
        ("attack FOLDER --images drawn:8 --length 64", "no options of prompts, which this model does not read"),
        ("corrupt FOLDER --images drawn:8 --scan reference", "--scan for"),
        (
            "attack FOLDER --images drawn:8 --tokenizer words",
            "no options of language models, which this model does not",
        ),
        ("attack FOLDER --images drawn:8 --init-seed 3", "--init-seed for"),
    ],
)
def test_refused(words, said, folder, tmp_path):
    done = CliRunner().invoke(app, [*words.replace("FOLDER", folder).split(), "--out", str(tmp_path / "runs")])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    assert not (tmp_path / "runs").exists()


def test_other_classes(folder):
    images = Images.checked(np.zeros((4, 8, 8, 1)), [0, 1, 0, 1])
    with pytest.raises(InputError, match="2 classes of images and 10 of tiny"):
        Subject.of(load_classifier(folder, device="cpu"), images, PixelLayout())
