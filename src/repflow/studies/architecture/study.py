"""Architecture: which language models learn a text best, and what is inside them?"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from repflow.spec.architecture import parse_architecture
from repflow.studies.architecture.config import ArchitectureCell, ArchitectureConfig, check
from repflow.studies.architecture.fit import fits, onset_depth
from repflow.studies.architecture.remedy import freeze_norms, penalties_of
from repflow.studies.laboratory.files import FromFiles
from repflow.studies.laboratory.study import TRAINING, Laboratory
from repflow.tasks.documents import END

if TYPE_CHECKING:
    import torch

    from repflow.core.results import Finding, Result
    from repflow.studies.engine.size import Size
    from repflow.studies.laboratory.study import LaboratoryJob
    from repflow.tasks.prompt import Prompts
    from repflow.training import BatchSource, Loss, OptimiserConfig, Schedule
    from repflow.training.text import TextData

SPLIT_SEED = 0
"""Of what is held out: all models of all seeds learn from the same documents."""
FEW_DOCUMENTS = "few_documents"
PERPLEXITY = ("perplexity", "perplexity_low", "perplexity_high", "bits_per_byte")


class ArchitectureStudy(Laboratory[ArchitectureConfig]):
    """Train a grid of language models on a text, and look at each."""

    name = "architecture"
    config = ArchitectureConfig
    reads_text = True
    summary = """Train a grid of language models on a text: perplexity, recall, flow, influence, fits of each factor.

    A row says which blocks in which order, with which remedies. Every row, depth, width, length, rate and seed is one
    model. A stopped or killed run resumes when the same command runs again.
    """
    tested: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **dict.fromkeys(PERPLEXITY, ("text",)),
        "document_nats": ("text", "document"),
        "loss_by_place": ("place",),
        **dict.fromkeys(("leak", "leak_low", "leak_high", "whole_loss", "prefix_loss"), ()),
        "eigenvalues_real": ("layer", "eigenvalue"),
        "eigenvalues_imaginary": ("layer", "eigenvalue"),
        "spectral_norm": ("layer",),
        "start_norm": ("layer",),
        "token_norm": ("state",),
        "start_token_norm": ("state",),
        "own_width": (),
        "recall": ("pairs",),
        **dict.fromkeys(("smoothness", "stability", "relative_smoothness", "relative_stability"), ()),
    }
    flow: ClassVar[Sequence[str]] = (
        *("token_similarity", "token_similarity_excess"),
        *("smoothness", "stability", "relative_smoothness", "relative_stability"),
    )

    def check(self, config: ArchitectureConfig) -> None:
        """Refuse wrong options; no torch."""
        check(config)
        TEXTS.look(*_request(config))

    def prepare(
        self, config: ArchitectureConfig, models: dict[str, Any], given: Any, progress: Any
    ) -> LaboratoryJob[ArchitectureConfig]:
        """Read the text: one that is smaller than a batch is refused before anything is written."""
        import torch

        for cell in {cell.length: cell for cell in config.grid()}.values():
            self.source(cell, config, torch.device("cpu"))
        return super().prepare(config, models, given, progress)

    def digests(self, job: LaboratoryJob[ArchitectureConfig]) -> dict[str, Any]:
        """The texts: a run is not resumed with others."""
        return {name: part.digest for name, part in text_of(job.config).parts().items()}

    def width(self, cell: ArchitectureCell, config: ArchitectureConfig) -> int:
        """The cell's, or one that gives the row as many parameters as the row to match has at the cell's."""
        from repflow.studies.architecture.size import matched_width

        if config.match_row is None:
            return cell.width
        size = (cell.layers, cell.width, self.vocabulary(config))
        goal = config.match_layers
        return matched_width(cell.row, config.match_row, *size, config.row_numbers(), goal_layers=goal)

    def vocabulary(self, config: ArchitectureConfig) -> int:
        """Ids of the text, and those of recall behind them."""
        return text_of(config).vocabulary + (config.recall_ids if config.recall_share else 0)

    def size(self, config: ArchitectureConfig) -> Size:
        """Of the largest model, counted without its weights."""
        from repflow.studies.engine.size import Size

        kinds = {cell.variant: cell for cell in config.grid()}.values()
        return max(
            (Size(self.count(cell, config), cell.layers, self.width(cell, config)) for cell in kinds), key=_count
        )

    def count(self, cell: ArchitectureCell, config: ArchitectureConfig, *, used: bool = False) -> int:
        """Parameters of a cell's model; those that a token meets, where shared ones count in every layer, if `used`."""
        from repflow.studies.architecture.size import count_parameters

        width, numbers = self.width(cell, config), config.row_numbers()
        row = cell.row.replace("+shared", "") if used else cell.row
        return count_parameters(row, cell.layers, width, self.vocabulary(config), numbers)

    def reads(self, config: ArchitectureConfig) -> tuple[int, int]:
        """Shorter windows have more rows."""
        return config.steps * sum(config.rows_of(cell.length) for cell in config.grid()), super().reads(config)[1]

    def flops(self, config: ArchitectureConfig, size: Size) -> float:
        """Forward and backward passes of every model at its own size; shared weights are used once in every layer."""
        each = (self.count(cell, config, used=True) * self.step_tokens(cell, config) for cell in config.grid())
        return float(TRAINING * config.steps * sum(each))

    def network(self, cell: ArchitectureCell, config: ArchitectureConfig) -> Any:
        """A stack of the row with a tied head."""
        from repflow.models.stack.config import StackConfig
        from repflow.models.stack.network import StackForCausalLM

        row = parse_architecture(cell.row)
        frame = row.frame(cell.layers, config.row_numbers())
        frame |= {"dropout": config.dropout} if config.dropout else {}
        size: dict[str, Any] = {"hidden_size": self.width(cell, config), "vocab_size": self.vocabulary(config)}
        network = StackForCausalLM(StackConfig(tie_word_embeddings=True, **size, **frame))
        if "frozen" in row.parts:
            freeze_norms(network)
        return network

    def finished(self, network: Any, cell: ArchitectureCell, config: ArchitectureConfig) -> Any:
        """A model that was trained to recall says with which of its ids, so that the task `recall` uses them."""
        if config.recall_share:
            network.config.recall_first = text_of(config).vocabulary
        return network

    def loss(self, cell: ArchitectureCell, config: ArchitectureConfig) -> Loss:
        """Cross entropy, with the penalties of the row beside it."""
        from repflow.training.losses import CrossEntropy, Penalised

        plain = CrossEntropy(accuracy=True)
        penalties = penalties_of(parse_architecture(cell.row), cell.layers, config.decay_limit)
        return Penalised(penalties, plain) if penalties else plain

    def shape(self, network: Any, cell: ArchitectureCell, config: ArchitectureConfig) -> Hashable | None:
        """Windows are of one length too; None also for frozen norms: models side by side train the same weights."""
        own = None if "frozen" in parse_architecture(cell.row).parts else super().shape(network, cell, config)
        return None if own is None else (cell.length, own)

    def source(self, cell: ArchitectureCell, config: ArchitectureConfig, device: torch.device) -> BatchSource:
        """Windows of the text, in an order of the seed's own; at a share of the steps fresh rows of recall."""
        from repflow.training.recall import RecallBatches
        from repflow.training.text import MixedBatches, TextBatches

        rows, text = config.rows_of(cell.length), text_of(config)
        usual = TextBatches(text.train, length=cell.length, rows=rows, seed=cell.seed, device=device)
        if not config.recall_share:
            return usual
        pairs = RecallBatches(config.recall_settings(cell.length), rows=rows, seed=cell.seed, device=device)
        return MixedBatches(usual, pairs, share=config.recall_share, offset=text.vocabulary)

    def source_key(self, cell: ArchitectureCell, config: ArchitectureConfig) -> tuple[Any, ...]:
        """Models of a seed and a length read the same windows."""
        return cell.seed, cell.length

    def step_tokens(self, cell: ArchitectureCell, config: ArchitectureConfig) -> float:
        """The same for every length, but for what does not divide."""
        return float(config.rows_of(cell.length) * cell.length)

    def row_tokens(self, cell: ArchitectureCell, config: ArchitectureConfig) -> float:
        """Of a window: shorter ones have more rows."""
        return float(cell.length)

    def optimiser(self, cell: ArchitectureCell, config: ArchitectureConfig) -> OptimiserConfig:
        """AdamW with the request's decay and beta."""
        from repflow.training import OptimiserConfig

        return OptimiserConfig(decay=config.decay, betas=(0.9, config.second_beta))

    def schedule(self, config: ArchitectureConfig) -> Schedule:
        """Warm-up, then a cosine to the last rate."""
        from repflow.training import Schedule

        return Schedule("cosine", warmup=round(config.warmup * config.steps), final=config.last_rate)

    def watched(self, config: ArchitectureConfig) -> Sequence[int]:
        """Steps at equal distances, the first and the last among them."""
        if not config.readings:
            return ()
        return sorted({round(at) for at in np.linspace(0, config.steps, config.readings + 1).tolist()})

    def watch(self, network: Any, cell: ArchitectureCell, config: ArchitectureConfig) -> dict[str, float]:
        """Perplexity on the first held-out documents."""
        from repflow.training.text import text_loss

        part = text_of(config).held_out.some(config.reading_tokens)
        return {"perplexity": float(text_loss(network, part, length=cell.length).perplexity.mean)}

    def evaluate(self, network: Any, cell: ArchitectureCell, config: ArchitectureConfig) -> dict[str, np.ndarray]:
        """Perplexity of every text, the leak of a row that reorders, eigenvalues and norms."""
        from repflow.studies.architecture.reading import read_leak, read_norms, read_recall, read_spectra, read_texts

        data = text_of(config)
        arrays = read_texts(network, data, cell.length)
        if config.leak_positions and parse_architecture(cell.row).reordered:
            arrays |= read_leak(network, data, cell.length, config.leak_positions)
        if config.recall_share:
            arrays["recall"] = read_recall(network, config.recall_settings(cell.length), config.recall_rows, data)
        arrays["token_norm"] = read_norms(network, data, cell.length)
        return arrays | read_spectra(network)

    def measured(self, cell: ArchitectureCell, config: ArchitectureConfig) -> Sequence[str]:
        """Without what needs more prompts or more blocks than there are."""
        few = () if config.flow_samples > 1 else ("token_similarity_excess",)
        flat = () if cell.layers > 1 else ("smoothness", "relative_smoothness")
        return [name for name in self.flow if name not in (*few, *flat)]

    def always(self, config: ArchitectureConfig) -> dict[str, tuple[int, ...]]:
        """What every trained model is tested for."""
        texts = len(text_of(config).tests)
        return {**dict.fromkeys(PERPLEXITY, (texts,)), "document_nats": (texts, 1), "token_norm": (1,)}

    def assembled(
        self, cells: Sequence[Mapping[str, np.ndarray]], config: ArchitectureConfig
    ) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
        """Also the depth at which tokens become alike."""
        arrays, axes = super().assembled(cells, config)
        if "token_similarity" in arrays:
            arrays["onset_depth"] = np.array([onset_depth(values) for values in arrays["token_similarity"]])
            axes["onset_depth"] = ("cell",)
        return arrays, axes

    def result(
        self, config: ArchitectureConfig, cells: list[tuple[dict[str, np.ndarray], Mapping[str, Any]]]
    ) -> Result:
        """Also what each factor of the grid does."""
        result = super().result(config, cells)
        result.provenance[self.name]["fits"] = fits(result, config.recall_rows)
        return result

    def sizes(self, network: Any, cell: ArchitectureCell, config: ArchitectureConfig) -> dict[str, np.ndarray]:
        """Width, and what the model was like before training: spectral norms and token norms."""
        from repflow.studies.architecture.reading import read_norms, read_spectra

        fresh = self.build(cell, config).to(next(network.parameters()).device).eval()
        sizes = {"own_width": np.array(network.config.hidden_size)}
        sizes["start_token_norm"] = read_norms(fresh, text_of(config), cell.length)
        norms = read_spectra(fresh).get("spectral_norm")
        return sizes if norms is None else {**sizes, "start_norm": norms}

    def prompts(self, cell: ArchitectureCell, config: ArchitectureConfig) -> Prompts:
        """Beginnings of held-out documents, the longest first."""
        from repflow.tasks import id_prompts

        data = text_of(config)
        parts = sorted((data.held_out.document(number) for number in range(len(data.held_out))), key=len)[::-1]
        rows = [part[: cell.length].astype(np.int64).tolist() for part in parts[: config.flow_samples]]
        return id_prompts([row for row in rows if len(row) > 1], data.vocabulary, tokenizer=data.tokenizer)

    def tokenizer(self, config: ArchitectureConfig) -> Any:
        """Of the text, kept beside each model."""
        return text_of(config).tokenizer

    def facts(self, config: ArchitectureConfig) -> dict[str, Any]:
        """Texts, tokens of their documents, and which rows read their future."""
        data = text_of(config)
        tokens = {name: (np.diff(part.starts) - 1).tolist() for name, part in data.tests.items()}
        rows = dict.fromkeys(cell.row for cell in config.grid())
        return {
            "texts": list(data.tests),
            "data": data.facts(),
            "document_tokens": tokens,
            "pairs": self._pairs(config),
            "leaky": [row for row in rows if parse_architecture(row).leaky],
        }

    def _pairs(self, config: ArchitectureConfig) -> dict[str, list[int]]:
        """Pairs of the test rows, by length."""
        lengths = sorted({cell.length for cell in config.grid()}) if config.recall_share else []
        return {str(length): [kind.pairs for kind in config.recall_settings(length)] for length in lengths}

    def findings(self, config: ArchitectureConfig, arrays: Mapping[str, np.ndarray]) -> list[Finding]:
        """Rows that read their future: none of their numbers is that of a model that predicts; and few documents."""
        from repflow.core.intervals import LEAST_VALUES
        from repflow.core.results import Finding
        from repflow.studies.engine.study import LEAKY

        rows = dict.fromkeys(cell.row for cell in config.grid() if parse_architecture(cell.row).leaky)
        findings = [Finding(LEAKY, None, f"{row} {LEAK_WORDS}") for row in rows]
        held = int(np.isfinite(arrays["document_nats"][:, 0]).sum(-1).max(initial=0))
        if 0 < held < LEAST_VALUES:
            words = f"{held} document{' is' if held == 1 else 's are'} held out, so that no interval is over documents"
            remedy = f"part the text by lines {END}, or name a held-out text with {LEAST_VALUES} or more"
            findings.append(Finding(FEW_DOCUMENTS, None, f"{words}: {remedy}"))
        return findings


def _count(size: Size) -> int:
    return size.parameters or 0


LEAK_WORDS = (
    "sorts whole sequences, so every token reads those behind it, the answer among them: its loss is not that of a "
    "model that predicts; leak is what it loses when it is given the prefix alone"
)


def text_of(config: ArchitectureConfig) -> TextData:
    """The texts of a request, read once in a process, and again by a later call where their files have changed."""
    return TEXTS(*_request(config))


def _request(config: ArchitectureConfig) -> tuple[Any, ...]:
    others = tuple(sorted(config.others().items()))
    return tuple(config.paths()), config.held_out, config.held_out_share, others, config.tokenizer


def _read(
    paths: tuple[str, ...],
    held_out: str | None,
    share: float,
    others: tuple[tuple[str, str], ...],
    tokenizer: str | None,
) -> TextData:
    from repflow.training.text import text_data

    return text_data(paths, held_out=held_out, share=share, others=dict(others), tokenizer=tokenizer, seed=SPLIT_SEED)


TEXTS = FromFiles(
    _read,
    lambda paths, held_out, share, others, tokenizer: [*paths, held_out, *(path for _, path in others), tokenizer],
)
STUDY = ArchitectureStudy()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name
