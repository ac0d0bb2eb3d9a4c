"""Recall: which stacks learn to look up, how far back, and what that has to do with their decays?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from repflow.studies.laboratory.method import INSIDE, LEARNING
from repflow.studies.laboratory.study import Laboratory
from repflow.studies.recall.config import RecallCell, RecallConfig, check, parse_row

if TYPE_CHECKING:
    import torch

    from repflow.tasks.prompt import Prompts
    from repflow.training import Batch, BatchSource


class Recall(Laboratory[RecallConfig]):
    """Train a grid of stacks on associative recall, and look at each."""

    name = "recall"
    config = RecallConfig
    summary = """Train a grid of stacks on associative recall: accuracy by pairs and by distance, beside their decays.

    Every row, depth, width, rate and seed is one model. Models of one shape are trained side by side. A stopped or
    killed run resumes when the same command runs again.
    """
    tested: ClassVar[Mapping[str, tuple[str, ...]]] = {"state_bytes": ()}
    stacked = True

    def check(self, config: RecallConfig) -> None:
        """Refuse wrong options; no torch."""
        check(config)

    def network(self, cell: RecallCell, config: RecallConfig) -> Any:
        """A stack of the row's mixer."""
        from repflow.models.stack.config import StackConfig
        from repflow.models.stack.network import StackForCausalLM

        mixer = dict(parse_row(cell.row).mixer) | ({"dt_bias": "zero"} if cell.init == "published" else {})
        shape: dict[str, Any] = {
            "num_hidden_layers": cell.layers,
            "hidden_size": cell.width,
            "vocab_size": config.vocabulary,
        }
        return StackForCausalLM(StackConfig(mixers=mixer, tie_word_embeddings=not config.untied, **shape))

    def source(self, cell: RecallCell, config: RecallConfig, device: torch.device) -> BatchSource:
        """Fresh rows at every step, the same for all models of a seed."""
        from repflow.training.recall import RecallBatches

        return RecallBatches(config.settings(), rows=config.batch, seed=cell.seed, device=device)

    def step_tokens(self, cell: RecallCell, config: RecallConfig) -> float:
        """Mean over the kinds of rows."""
        lengths = [setting.length for setting in config.settings()]
        return config.batch * sum(lengths) / len(lengths)

    def longest_row(self, cell: RecallCell, config: RecallConfig) -> Batch:
        """A row of the longest kind with the most queries."""
        import torch

        from repflow.training.recall import RecallBatches

        setting = max(config.settings(), key=lambda kind: (kind.length, kind.pairs))
        return RecallBatches([setting], rows=1, device=torch.device("cpu")).batch(0)

    def evaluate(self, network: Any, cell: RecallCell, config: RecallConfig) -> dict[str, np.ndarray]:
        """Right answers by number of pairs and by distance."""
        from repflow.studies.recall.accuracy import count_right

        return count_right(network, config.tests(), config.test_rows)

    def sizes(self, network: Any, cell: RecallCell, config: RecallConfig) -> dict[str, np.ndarray]:
        """Bytes of state."""
        from repflow.studies.recall.accuracy import state_bytes

        return {"state_bytes": np.array(state_bytes(network, config.tests()[0].length))}

    def prompts(self, cell: RecallCell, config: RecallConfig) -> Prompts:
        """Rows of the fewest pairs, cut behind the last query."""
        from repflow.studies.recall.accuracy import TEST_SEED
        from repflow.tasks.recall import recall_prompts

        setting = config.tests()[0]
        return recall_prompts(
            config.vocabulary, length=setting.length, samples=config.flow_samples, seed=TEST_SEED, pairs=setting.pairs
        )

    def assembled(
        self, cells: Sequence[Mapping[str, np.ndarray]], config: RecallConfig
    ) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
        """Shares of right answers beside what every laboratory has."""
        from repflow.studies.laboratory.result import gathered, padded

        arrays, axes = gathered(cells, {**LEARNING, **INSIDE, **self.tested})
        right, seen = (padded([part.get(name) for part in cells]) for name in ("right", "queries"))
        with np.errstate(invalid="ignore", divide="ignore"):
            arrays["accuracy"], axes["accuracy"] = right.sum(2) / seen.sum(2), ("cell", "pairs")
            arrays["accuracy_by_distance"] = right / np.where(seen > 0, seen, np.nan)
        axes["accuracy_by_distance"] = ("cell", "pairs", "gap")
        return arrays, axes

    def facts(self, config: RecallConfig) -> dict[str, Any]:
        """Pairs and bins of distances."""
        from repflow.studies.recall.accuracy import distance_edges

        tests = config.tests()
        length = tests[0].length
        return {"pairs": [setting.pairs for setting in tests], "length": length, "gaps": distance_edges(length)}


STUDY = Recall()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name
