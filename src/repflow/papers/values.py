"""The papers' printed values, each with its table, cell and source. Data only; no torch.

Paper 1 is "A Comparative Analysis of Contextual Representation Flow in State-Space and Transformer Architectures",
arXiv 2510.06640. Its Tables 1 and 2 are typed as they are printed; what its text, captions and two published summaries
of it say in numbers are `QUOTES`, each with the words themselves. A quote is evidence of what was printed, not of what
is true: `repflow reproduce flow-check` lists where they disagree.

Letters: Sm smoothness (Eq. 3), St stability (Eq. 4); TBM a Transformer-based model, SSM a state-space model; ↓ the
accuracy that the last layer loses against the best one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from repflow.core.errors import InputError, nearest

FLOW = "arXiv 2510.06640"
"""Paper 1."""
SUMMARY_1, SUMMARY_2 = "machine-written summary 1", "machine-written summary 2"
"""Two machine-written summaries of paper 1; the first one follows a later version of it."""

Quantity = Literal["accuracy", "drop", "smoothness", "stability"]
QUANTITIES: tuple[Quantity, ...] = ("accuracy", "drop", "smoothness", "stability")
UNITS: dict[str, float] = {"accuracy": 0.1, "drop": 0.1, "smoothness": 0.001, "stability": 0.001}
"""Last printed place of each quantity in the tables; accuracy and drop are in percent."""

LENGTHS = (300, 1000, 2000, 4000)
"""Context lengths of the tables; the paper writes 300, 1K, 2K and 4K."""
TASKS = {"mdqa": "Multi-Document Question Answering", "kvpr": "Key-Value Pairs Retrieval"}
FIGURE_LENGTH = 2000
"""Length of all figures (section 3.2)."""
RATIO_DISTANCES = 128
"""Distances that the ratio of two models' influence is drawn over (paper 2, Figure 7b)."""
PROBE_TRAINING, PROBE_EPOCHS, PROBE_RATE, PROBE_SEEDS = 20_000, 150, 0.05, 5
"""Probes: training prompts, epochs, Adam's rate, seeds (section 3.1)."""


@dataclass(frozen=True)
class Checkpoint:
    """A model of the paper.

    Attributes:
        name: as the tables spell it.
        family: TBM or SSM.
        hub: hub id of the published checkpoint; inferred, the paper says "from the Hugging Face" and no more.
        tokenizer: hub id of its tokenizer, where its own repository has none.
        positions: longest prompt it reads, None without a limit.
        config: its architecture, from which size and cost are computed.
    """

    name: str
    family: Literal["TBM", "SSM"]
    hub: str
    config: dict[str, Any] = field(hash=False)
    tokenizer: str | None = None
    positions: int | None = None


_NEOX_TOKENIZER = "EleutherAI/gpt-neox-20b"
_MAMBA_2 = {"model_type": "mamba2", "state_size": 128, "head_dim": 64, "n_groups": 1, "vocab_size": 50288}
_TIED = {"tie_word_embeddings": True}

CHECKPOINTS: dict[str, Checkpoint] = {
    entry.name: entry
    for entry in (
        Checkpoint(
            "GPT-Neo-2.7B", "TBM", "EleutherAI/gpt-neo-2.7B",
            {"model_type": "gpt_neo", "hidden_size": 2560, "num_layers": 32, "num_heads": 20, "vocab_size": 50257,
             "attention_types": [[["global", "local"], 16]], "window_size": 256, "max_position_embeddings": 2048},
            positions=2048,
        ),
        Checkpoint(
            "Pythia-2.8B", "TBM", "EleutherAI/pythia-2.8b",
            {"model_type": "gpt_neox", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
             "intermediate_size": 10240, "vocab_size": 50304, "max_position_embeddings": 2048,
             "tie_word_embeddings": False},
            positions=2048,
        ),
        Checkpoint(
            "Mamba2-130M", "SSM", "state-spaces/mamba2-130m",
            {**_MAMBA_2, **_TIED, "hidden_size": 768, "num_hidden_layers": 24, "num_heads": 24},
            tokenizer=_NEOX_TOKENIZER,
        ),
        Checkpoint(
            "Mamba-2.8B", "SSM", "state-spaces/mamba-2.8b-hf",
            {"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16,
             "vocab_size": 50280, **_TIED},
        ),
        Checkpoint(
            "Mamba2-2.7B", "SSM", "state-spaces/mamba2-2.7b",
            {**_MAMBA_2, **_TIED, "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80},
            tokenizer=_NEOX_TOKENIZER,
        ),
    )
}  # fmt: skip
MODELS = tuple(CHECKPOINTS)
"""Names in the order of the tables."""


def layers_of(model: str) -> int:
    """Blocks of a model of the paper.

    >>> layers_of("GPT-Neo-2.7B"), layers_of("Mamba2-2.7B")
    (32, 64)
    """
    config = checkpoint(model).config
    return int(config["num_layers"] if "num_layers" in config else config["num_hidden_layers"])


def checkpoint(name: str) -> Checkpoint:
    """Look up a model of the paper by the tables' spelling, whatever the case.

    >>> checkpoint("pythia-2.8b").hub
    'EleutherAI/pythia-2.8b'
    """
    spelled = {known.lower(): known for known in CHECKPOINTS}
    if name.lower() not in spelled:
        raise InputError(f"unknown model of the paper {name!r}; {nearest(name, CHECKPOINTS)}")
    return CHECKPOINTS[spelled[name.lower()]]


@dataclass(frozen=True)
class Cell:
    """One model at one length in a table.

    Attributes:
        table: 1 or 2.
        task: mdqa or kvpr; `mean` in Table 1, which reports "averaged results across tasks" (section 3.1).
        model: as the table spells it.
        length: tokens of the prompt.
        accuracy: probing accuracy of the last layer, percent.
        drop: what it loses against the peak layer, points (↓).
        smoothness: Sm.
        stability: St.
    """

    table: int
    task: str
    model: str
    length: int
    accuracy: float
    drop: float
    smoothness: float
    stability: float

    @property
    def place(self) -> str:
        """Where it is printed.

        >>> printed("kvpr", "Mamba2-2.7B", 2000).place
        'arXiv 2510.06640, Table 2, Key-Value Pairs Retrieval, Mamba2-2.7B, n = 2K'
        """
        block = f", {TASKS[self.task]}" if self.task in TASKS else ""
        return f"{FLOW}, Table {self.table}{block}, {self.model}, n = {short_length(self.length)}"

    def value(self, quantity: str) -> float:
        """One of the four numbers of the cell."""
        if quantity not in QUANTITIES:
            raise InputError(f"unknown quantity {quantity!r}; {nearest(quantity, QUANTITIES)}")
        return float(getattr(self, quantity))


def short_length(length: int) -> str:
    """A length as the paper writes it.

    >>> short_length(300), short_length(2000)
    ('300', '2K')
    """
    return f"{length // 1000}K" if length >= 1000 and length % 1000 == 0 else str(length)


# Per length: accuracy, ↓, Sm, St. The columns are n = 300, 1K, 2K, 4K; - where the table has a dash.
_TABLE_1 = """
GPT-Neo-2.7B | 88.7 10.9 0.938 3.635 | 70.7 18.7 0.980 3.833 | 53.1 25.3 0.979 3.821 | -
Pythia-2.8B  | 95.9  3.8 0.265 1.059 | 72.3 14.0 0.277 1.122 | 60.9 15.4 0.280 1.147 | -
Mamba2-130M  | 72.5 17.1 3.572 5.395 | 42.3 13.8 3.704 5.665 | 28.6  8.0 3.752 5.735 | 20.6  7.6 3.846 5.890
Mamba-2.8B   | 93.0  6.4 0.173 0.315 | 62.5 11.7 0.189 0.354 | 41.7 14.0 0.193 0.363 | 36.7 12.2 0.190 0.354
Mamba2-2.7B  | 86.0 13.5 1.945 3.238 | 57.2 17.6 1.939 3.288 | 38.2 20.6 1.932 3.275 | 29.7 13.3 1.897 3.193
"""
_TABLE_2_MDQA = """
GPT-Neo-2.7B | 97.5  2.3 0.844 3.256 | 56.0 23.4 0.858 3.321 | 43.5 26.0 0.878 3.386 | -
Pythia-2.8B  | 97.5  2.1 0.245 1.003 | 57.4 18.7 0.250 1.033 | 47.4 18.6 0.254 1.053 | -
Mamba2-130M  | 89.1  5.9 3.276 4.864 | 29.4  6.7 3.273 4.881 | 20.4  3.0 3.313 4.932 | 10.4  6.7 3.410 5.082
Mamba-2.8B   | 97.5  1.7 0.167 0.282 | 44.1 10.5 0.174 0.293 | 27.7  6.1 0.175 0.295 | 14.6  9.3 0.175 0.293
Mamba2-2.7B  | 97.7  1.8 1.964 3.156 | 41.5 13.9 1.987 3.155 | 24.2 10.3 2.013 3.174 | 12.7 12.3 1.974 3.065
"""
_TABLE_2_KVPR = """
GPT-Neo-2.7B | 79.9 19.6 0.996 3.970 | 85.5 14.1 1.057 4.284 | 62.7 26.4 1.061 4.287 | -
Pythia-2.8B  | 94.4  5.6 0.278 1.113 | 95.2  4.8 0.292 1.177 | 90.5  9.4 0.300 1.227 | -
Mamba2-130M  | 55.9 29.1 3.692 5.704 | 55.2 22.7 3.938 6.216 | 36.9 14.3 3.950 6.234 | 30.7  6.7 4.058 6.431
Mamba-2.8B   | 88.5 11.4 0.172 0.337 | 78.9 18.5 0.204 0.413 | 55.0 26.5 0.209 0.425 | 58.7 23.8 0.203 0.412
Mamba2-2.7B  | 74.3 25.5 1.836 3.249 | 72.8 26.2 1.853 3.379 | 52.2 36.4 1.834 3.355 | 46.6 24.0 1.811 3.328
"""


def _cells(table: int, task: str, text: str) -> Iterator[Cell]:
    for line in text.strip().splitlines():
        model, *groups = (part.strip() for part in line.split("|"))
        for length, group in zip(LENGTHS, groups, strict=True):
            if group != "-":
                accuracy, drop, smoothness, stability = map(float, group.split())
                yield Cell(table, task, model, length, accuracy, drop, smoothness, stability)


TABLE_1: dict[tuple[str, int], Cell] = {(cell.model, cell.length): cell for cell in _cells(1, "mean", _TABLE_1)}
"""Table 1 by model and length."""
TABLE_2: dict[tuple[str, str, int], Cell] = {
    (cell.task, cell.model, cell.length): cell
    for task, text in (("mdqa", _TABLE_2_MDQA), ("kvpr", _TABLE_2_KVPR))
    for cell in _cells(2, task, text)
}
"""Table 2 by task, model and length."""


def printed(task: str, model: str, length: int) -> Cell | None:
    """Cell of Table 2, or of Table 1 for the task `mean`; None where the table has a dash.

    >>> printed("mean", "Pythia-2.8B", 2000).accuracy, printed("kvpr", "Pythia-2.8B", 4000)
    (60.9, None)
    """
    name = checkpoint(model).name
    if task not in (*TASKS, "mean"):
        raise InputError(f"unknown task of the paper {task!r}; {nearest(task, [*TASKS, 'mean'])}")
    if length not in LENGTHS:
        raise InputError(f"no length {length} in the paper's tables; known: {', '.join(map(str, LENGTHS))}")
    return TABLE_1.get((name, length)) if task == "mean" else TABLE_2.get((task, name, length))


@dataclass(frozen=True)
class Quote:
    """A statement of the text, a caption or a summary.

    Attributes:
        source: the paper or a summary.
        place: section, figure or heading in it.
        line: line of the text we read it in.
        subject: a model, or a family: TBM or SSM.
        quantity: `layer_cosine`, `token_similarity`, `cka` (`cka_unplaced`: of which pair is not said), `peak_layer`,
            one of the tables', or a claim that `flow-check` looks at.
        low: smallest value, in percent for cosines, CKA and accuracy; None for a statement without a number.
        high: largest value; that of `low` where one number is given.
        layers: first and last layer it is about, from 1 (-1 is the last); for `cka` a pair; None for most layers.
        init: `trained` or `random`.
        words: as printed.
        inferred: our reading, where the words leave open what the number is of.
    """

    source: str
    place: str
    line: int
    subject: str
    quantity: str
    low: float | None
    high: float | None
    layers: tuple[int, int] | None
    words: str
    init: str = "trained"
    inferred: str = ""

    @property
    def citation(self) -> str:
        """Source and place."""
        return f"{self.source}, {self.place}"


def _say(
    where: tuple[str, str, int], subject: str, quantity: str, value: Any, layers: Any, words: str, **more: str
) -> Quote:
    low, high = value if isinstance(value, tuple) else (value, value)
    span = (layers, layers) if isinstance(layers, int) else layers
    source, place, line = where
    return Quote(source, place, line, subject, quantity, low, high, span, words, **more)


_NEO, _PYTHIA, _MAMBA_130, _MAMBA, _MAMBA2 = MODELS
_F1 = (FLOW, "section 3.2.1, Figure 1", 105)
_F2 = (FLOW, "section 3.2.2, Figure 2", 109)
_F2_LATE = (FLOW, "section 3.2.2, Figure 2", 116)
_F3 = (FLOW, "section 3.2.3, Figure 3", 120)
_F4 = (FLOW, "section 3.3.1, Figure 4", 147)
_T1 = (FLOW, "section 3.3.2, Table 1", 164)
_F7 = (FLOW, "section 3.4.1, Table 1 and Figure 7", 174)
_SIZE = (FLOW, "section 3.4.3", 184)
_KEY = (SUMMARY_1, "Key Results")
_HOW = (SUMMARY_1, "Mechanism")
_HOW_T1 = (SUMMARY_1, "Mechanism, which names section 3.4.1, Table 1", 74)
_BOTH = "for GPT-Neo-2.7B and Pythia-2.8B in this order"
_SSMS = "for Mamba2-2.7B and Mamba-2.8B in this order"
_HEAT = "one row of a heat map of all pairs: taken as the pair of first and named layer"

QUOTES: tuple[Quote, ...] = (
    _say(_F1, _NEO, "layer_cosine", 100.0, 1, "similarity starts at nearly 100%"),
    _say(_F1, _NEO, "layer_cosine", 90.0, 3, "dips slightly to 90% by layer 3"),
    _say(_F1, _NEO, "layer_cosine", 100.0, (4, 31), "quickly recovers to 100%, and holds steady"),
    _say(_F1, _NEO, "layer_cosine", 70.0, 32, "a sharp decline to 70% at layer 32"),
    _say(_F1, _PYTHIA, "layer_cosine", 90.0, 1, r"Pythia-2.8B begins at $\sim 90\%$"),
    _say(_F1, _PYTHIA, "layer_cosine", 100.0, 23, r"gradually increases to $\sim 100\%$ by layer 23"),
    _say(_F1, _PYTHIA, "layer_cosine", 70.0, 32, "drops from layer 29 to 70% by the final layer"),
    _say(_F1, _MAMBA2, "layer_cosine", (20.0, 40.0), (1, 51), "fluctuates between 20% and 40% until layer 51"),
    _say(_F1, _MAMBA2, "layer_cosine", 80.0, 64, "rising steadily to 80% by the last layer 64"),
    _say(_F1, _MAMBA, "layer_cosine", 30.0, 1, "starting at 30%"),
    _say(_F1, _MAMBA, "layer_cosine", (-100.0, 0.0), 30, "it drops to 0% or even negative values at layers 30 and 41"),
    _say(_F1, _MAMBA, "layer_cosine", (-100.0, 0.0), 41, "it drops to 0% or even negative values at layers 30 and 41"),
    _say(_F1, _MAMBA, "layer_cosine", 60.0, 64, r"gradually rises to $\sim 60\%$ by the final layer"),
    _say(_F2, _NEO, "token_similarity", 90.0, None, "(around 90% and 70% respectively)", inferred=_BOTH),
    _say(_F2, _PYTHIA, "token_similarity", 70.0, None, "(around 90% and 70% respectively)", inferred=_BOTH),
    _say(_F2_LATE, _NEO, "token_similarity", 30.0, 32, "to roughly 30% near the final layer"),
    _say(_F2_LATE, _PYTHIA, "token_similarity", 30.0, 32, "to roughly 30% near the final layer"),
    _say(_F2_LATE, _MAMBA2, "token_similarity", 30.0, None, "(around 30% and 10% respectively)", inferred=_SSMS),
    _say(_F2_LATE, _MAMBA, "token_similarity", 10.0, None, "(around 30% and 10% respectively)", inferred=_SSMS),
    _say(_F2_LATE, _MAMBA, "token_similarity", 70.0, 64, "reaching 70% by the final layer"),
    *(
        _say(_F3, _NEO, "token_similarity", (75.0, 100.0), (1, 32), "(approximately 75–100%) layer-by-layer", init=init)
        for init in ("trained", "random")
    ),
    _say(_F3, _MAMBA2, "token_similarity", (0.0, 25.0), (1, 64), "(around 0–25%) across layers", init="random"),
    _say((*_F4[:2], 140), _NEO, "cka_unplaced", 100.0, None, r"near-perfect CKA similarity ($\sim 100\%$)"),
    _say(_F4, _PYTHIA, "cka_unplaced", 90.0, None, "Pythia-2.8B starts at 90% similarity"),
    _say(_F4, _NEO, "cka", 90.0, (1, 20), "the 1st layer retaining 90% similarity with layer 20"),
    _say(_F4, _NEO, "cka", 80.0, (1, 32), "drops to 80% by the final layer", inferred=_HEAT),
    _say(_F4, _PYTHIA, "cka", 30.0, (1, 2), "drops sharply to 30% by the second layer", inferred=_HEAT),
    *(
        _say(_F4, model, "cka", value, pair, words, inferred=_HEAT)
        for model in (_MAMBA2, _MAMBA)
        for value, pair, words in (
            ((20.0, 70.0), (1, 51), "fluctuating similarity scores between 20% and 70% until layer 51"),
            (90.0, (63, 64), "reaching 90% by the final layer 64"),
        )
    ),
    _say(_T1, _MAMBA, "smoothness", 0.19, None, "lower Sm (~ 0.19)"),
    _say(_T1, _MAMBA, "stability", 0.34, None, "St (~ 0.34)"),
    _say(_T1, _PYTHIA, "smoothness", 0.27, None, "Pythia-2.8B: ~ 0.27 Sm"),
    _say(_T1, _PYTHIA, "stability", 1.11, None, "~ 1.11 St"),
    _say(_T1, _NEO, "smoothness", 0.97, None, "GPT-Neo-2.7B: ~ 0.97 Sm"),
    _say(_T1, _NEO, "stability", 3.76, None, "~ 3.76 St"),
    _say(_T1, _MAMBA, "steadiest", None, None, "among SSMs, only Mamba-2.8B consistently achieves lower Sm"),
    _say(_T1, _PYTHIA, "ratio", 3.0, None, "roughly three times lower than GPT-Neo-2.7B"),
    _say(_F7, _NEO, "peak_layer", 10.0, None, "peak accuracy around layer 10 (out of 32)"),
    _say(_F7, _PYTHIA, "peak_layer", 10.0, None, "peak accuracy around layer 10 (out of 32)"),
    _say(_F7, _MAMBA2, "peak_layer", (4.0, 14.0), None, "peaks between layers 4 and 14 (out of 64)"),
    _say(_F7, _MAMBA, "peak_layer", (28.0, 64.0), None, "around layer 28 or beyond (out of 64)"),
    _say(_F7, "TBM", "largest_drop", 26.0, None, "dropping by up to 26% in the final layer"),
    _say(_F7, _MAMBA2, "largest_drop", 13.9, None, "declines by up to 13.9%"),
    _say((*_F7[:2], 176), _MAMBA, "largest_drop", 10.5, None, "a more gradual drop of at most 10.5%"),
    _say((*_F7[:2], 178), "SSM", "smaller_drop", None, None, "SSMs having a smaller gap to the last layer than TBMs"),
    _say((FLOW, "section 3.4.2", 180), "all", "decline", None, None, "steadily declines with increasing input length"),
    _say(_SIZE, _MAMBA2, "gain/mdqa", 2.3, None, "by 2.3% in the 4K MDQA task"),
    _say(_SIZE, _MAMBA2, "gain/kvpr", 15.9, None, "15.9% in the 4K KVPR task"),
    _say(_SIZE, _MAMBA_130, "drop/mdqa", 6.7, None, "increasing from 6.7% to 13.3% in MDQA"),
    _say(_SIZE, _MAMBA2, "drop/mdqa", 13.3, None, "increasing from 6.7% to 13.3% in MDQA"),
    _say(_SIZE, _MAMBA_130, "drop/kvpr", 24.0, None, "and from 24.0% in KVPR"),
    _say(_SIZE, _MAMBA2, "larger_drop", None, None, "they also exhibit a larger accuracy drop toward the final layer"),
    _say((FLOW, "section 3.4.2", 180), "all", "steady", None, None, "remain stable across context lengths"),
    _say((FLOW, "section 3.1", 55), _PYTHIA, "name", None, None, "Pythia-2.7B"),
    _say((FLOW, "Limitations", 280), "all", "models", 4.0, None, "we evaluated four representative models"),
    _say((*_KEY, 41), "TBM", "token_similarity", 90.0, None, "inter-token cosine similarity reaching ~90%"),
    _say((*_KEY, 41), "SSM", "token_similarity", 50.0, None, "lower similarity (~50%) through most layers"),
    _say((*_KEY, 43), "TBM", "largest_drop", 26.0, None, "up to 26% accuracy drops in TBMs"),
    _say((*_KEY, 43), "SSM", "largest_drop", 20.6, None, "20.6% in SSMs from peak to final layer"),
    _say((*_KEY, 44), "SSM", "steadier", None, None, "lower variance metrics (Vloc/Vglob) compared to TBMs"),
    _say((*_HOW, 54), "TBM", "token_similarity", 60.0, -1, "dropping to ~60% near final layer"),
    _say((*_HOW, 60), "TBM", "token_similarity", (80.0, 100.0), None, "(~80-100%)", init="random"),
    _say(_HOW_T1, _NEO, "largest_drop", 25.3, None, "with 25.3% drop to final layer"),
    _say(_HOW_T1, _MAMBA2, "largest_drop", 20.6, None, "with up to 20.6% drop"),
    _say((SUMMARY_2, "Key Results", 15), "TBM", "less_steady", None, None,
         "Transformers demonstrate higher path energy and stability compared to SSMs"),
)  # fmt: skip
"""What is said of paper 1's results in words."""

SIGNATURES: dict[str, Quote] = {
    "early_similarity": _say((SUMMARY_1, "Failure signatures", 110), "TBM", "token_similarity", (80.0, 100.0), None,
                             "High early inter-token similarity (>80%)"),
    "late_similarity": _say((SUMMARY_1, "Failure signatures", 111), "SSM", "token_similarity", (70.0, 100.0), None,
                            "Late-layer similarity spike (>70% in final layers)"),
    "drop": _say((SUMMARY_1, "Failure signatures", 112), "all", "drop", (15.0, 100.0), None,
                 "Probing accuracy declining >15% from intermediate peak to final layer"),
}  # fmt: skip
"""Signs that a model loses what it read, from a published summary, not from paper 1; `low` is the threshold."""


def quotes(quantity: str, *, source: str | None = None, init: str = "trained") -> tuple[Quote, ...]:
    """Quotes about one quantity.

    >>> [quote.low for quote in quotes("layer_cosine") if quote.subject == "GPT-Neo-2.7B"]
    [100.0, 90.0, 100.0, 70.0]
    """
    return tuple(q for q in QUOTES if q.quantity == quantity and q.init == init and source in (None, q.source))
