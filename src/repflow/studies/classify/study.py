"""Classify: which architectures name the class of a text best, and could these texts show a difference at all?"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.spec.architecture import parse_architecture
from repflow.studies.classify.config import ClassifyCell, ClassifyConfig, check
from repflow.studies.classify.difference import compared
from repflow.studies.laboratory.files import FromFiles
from repflow.studies.laboratory.study import Laboratory

if TYPE_CHECKING:
    import torch

    from repflow.core.results import Finding
    from repflow.studies.engine.size import Size
    from repflow.studies.laboratory.study import LaboratoryJob
    from repflow.tasks.prompt import Prompts
    from repflow.training import BatchSource
    from repflow.training.text import LabelledTexts

READINGS = 10
"""Times that accuracy is read while a model trains."""


class Classify(Laboratory[ClassifyConfig]):
    """Train a grid of classifiers of texts, and test each on its fold."""

    name = "classify"
    config = ClassifyConfig
    reads_text = True
    summary = """Train a grid of classifiers of texts: accuracy with intervals, and the smallest effect they could show.

    Every row, depth, width, rate and seed is one model; a seed names the fold that is tested. Here +leaky sorts the
    whole text, which leaks nothing: the class is of the whole text. A stopped or killed run resumes when the same
    command runs again.
    """
    tested: ClassVar[Mapping[str, tuple[str, ...]]] = {"accuracy": (), "right": ("document",)}

    def check(self, config: ClassifyConfig) -> None:
        """Refuse wrong options; no torch."""
        check(config)
        TEXTS.look(*_request(config))

    def prepare(
        self, config: ClassifyConfig, models: dict[str, Any], given: Any, progress: Any
    ) -> LaboratoryJob[ClassifyConfig]:
        """Read the texts: fewer than a batch are refused before anything is written."""
        data = texts_of(config)
        for fold in sorted({cell.seed % config.folds for cell in config.grid()}):
            rest = int((data.folds != fold).sum())
            if rest < config.batch:
                got = f"{rest} texts outside fold {fold} for a --batch of {config.batch}"
                raise InputError(teach("texts for one batch", got, "choose a smaller --batch, or add texts"))
        return super().prepare(config, models, given, progress)

    def digests(self, job: LaboratoryJob[ClassifyConfig]) -> dict[str, Any]:
        """The texts: a run is not resumed with others."""
        from repflow.models.weights.digest import weights_digest

        return {"texts": weights_digest(texts_of(job.config).rows.tensors().items())}

    def network(self, cell: ClassifyCell, config: ClassifyConfig) -> Any:
        """A classifier of the row."""
        from repflow.models.stack.config import StackConfig
        from repflow.models.stack.network import StackForSequenceClassification

        data = texts_of(config)
        frame = parse_architecture(cell.row).frame(cell.layers, config.row_numbers(), language=False)
        own: dict[str, Any] = {"num_labels": len(data.classes), "vocab_size": data.vocabulary}
        return StackForSequenceClassification(
            StackConfig(hidden_size=cell.width, pooling=config.pooling, **own, **frame)
        )

    def size(self, config: ClassifyConfig) -> Size:
        """Of the largest model, counted on its first blocks where all are equal."""
        from repflow.studies.engine.size import Size

        sizes = []
        for cell in {cell.variant: cell for cell in config.grid()}.values():
            equal = cell.layers > 2 and len(parse_architecture(cell.row).mixers) == 1
            counts = [self._count(replace(cell, layers=few), config) for few in ((1, 2) if equal else (cell.layers,))]
            sizes.append(Size(counts[0] + (cell.layers - 1) * (counts[-1] - counts[0]), cell.layers, cell.width))
        return max(sizes, key=lambda size: size.parameters or 0)

    def _count(self, cell: ClassifyCell, config: ClassifyConfig) -> int:
        return sum(part.numel() for part in self.outline(cell, config).parameters())

    def source(self, cell: ClassifyCell, config: ClassifyConfig, device: torch.device) -> BatchSource:
        """Texts of all folds but the cell's, each epoch in an order of its own."""
        from repflow.training import RowBatches

        rest, _ = texts_of(config).split(cell.seed % config.folds)
        return RowBatches(rest.to(device), config.batch, seed=cell.seed)

    def shape(self, network: Any, cell: ClassifyCell, config: ClassifyConfig) -> Hashable | None:
        """Models side by side read rows without padding: beside texts of unlike lengths each is trained alone."""
        return None if texts_of(config).rows.mask is not None else super().shape(network, cell, config)

    def step_tokens(self, cell: ClassifyCell, config: ClassifyConfig) -> float:
        """As if every text filled its row: the texts are not read yet when a plan is shown."""
        return float(config.batch * config.length)

    def watched(self, config: ClassifyConfig) -> Sequence[int]:
        """Steps at equal distances, the first and the last among them."""
        return sorted({round(at) for at in np.linspace(0, config.steps, READINGS + 1).tolist()})

    def watch(self, network: Any, cell: ClassifyCell, config: ClassifyConfig) -> dict[str, float]:
        """Accuracy on the test fold."""
        return {"accuracy": float(self._right(network, cell, config).mean())}

    def evaluate(self, network: Any, cell: ClassifyCell, config: ClassifyConfig) -> dict[str, np.ndarray]:
        """Accuracy on the test fold, text by text."""
        right = self._right(network, cell, config)
        return {"accuracy": np.array(right.mean()), "right": right}

    def _right(self, network: Any, cell: ClassifyCell, config: ClassifyConfig) -> np.ndarray:
        from repflow.studies.laboratory.evaluation import right_answers

        _, test = texts_of(config).split(cell.seed % config.folds)
        assert test.targets is not None
        return right_answers(network, test.inputs, test.targets, mask=test.mask)

    def always(self, config: ClassifyConfig) -> dict[str, tuple[int, ...]]:
        """What every trained model is tested for."""
        return {"right": (1,)}

    def prompts(self, cell: ClassifyCell, config: ClassifyConfig) -> Prompts | None:
        """Test texts as a causal classifier reads them."""
        from repflow.tasks import id_prompts

        if parse_architecture(cell.row).leaky:
            return None
        data = texts_of(config)
        _, test = data.split(cell.seed % config.folds)
        lengths = [data.rows.inputs.shape[1]] * config.flow_samples if test.mask is None else test.mask.sum(1).tolist()
        rows = [row[:size] for row, size in zip(test.inputs[: config.flow_samples].tolist(), lengths, strict=False)]
        return id_prompts([row for row in rows if len(row) > 1], data.vocabulary, tokenizer=data.tokenizer)

    def tokenizer(self, config: ClassifyConfig) -> Any:
        """Of the texts, kept beside each model."""
        return texts_of(config).tokenizer

    def facts(self, config: ClassifyConfig) -> dict[str, Any]:
        """Texts, classes, and the smallest effect that they could show."""
        data = texts_of(config)
        counts = list(data.facts()["classes"].values())
        return {"data": data.facts(), "chance": max(counts) / sum(counts), "folds": data.folds.tolist()}

    def findings(self, config: ClassifyConfig, arrays: Mapping[str, np.ndarray]) -> list[Finding]:
        """The smallest difference that the texts could show, and what every row has over the first."""
        from repflow.core.results import Finding

        folds = {cell.seed % config.folds for cell in config.grid()}
        tested = int(np.isin(texts_of(config).folds, list(folds)).sum())
        return [Finding(code, None, text) for code, text in compared(config.grid(), arrays, tested, config.folds)]


def texts_of(config: ClassifyConfig) -> LabelledTexts:
    """The texts of a request, read once in a process, and again by a later call where their files have changed."""
    return TEXTS(*_request(config))


def _request(config: ClassifyConfig) -> tuple[Any, ...]:
    return config.labelled, config.length, config.tokenizer, config.folds


def _read(path: str, length: int, tokenizer: str | None, folds: int) -> LabelledTexts:
    from repflow.training.text import labelled_texts

    return labelled_texts(path, length=length, tokenizer=tokenizer, folds=folds)


TEXTS = FromFiles(_read, lambda path, length, tokenizer, folds: (path, tokenizer))
STUDY = Classify()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name
