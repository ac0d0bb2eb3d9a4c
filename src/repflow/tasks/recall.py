"""recall, multi-query associative recall (Arora et al. 2023): pairs, then every key once more among fillers.

    k1 v1 k2 v2 k3 v3 | k2 0 k1 0 0 0 k3 0        loss and accuracy at k2, k1 and k3, whose targets are v2, v1 and v3

A row of `length` tokens begins with its pairs. Each key is queried once, at every second place behind them: place g of
the places 0, 1, ... is drawn without replacement with a chance proportional to (g + 1)^(power − 1), key after key, so
that with a small power queries stand early. Keys are ids from 1, values those of the upper half of the vocabulary. What
is left is 0, or random ids of the whole vocabulary (`filler="random"`), among which keys of the row may occur again.
A key that is drawn twice (`repeat_keys`) means its last pair.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest, teach
from repflow.tasks.draw import Draw
from repflow.tasks.gold import Gold
from repflow.tasks.make import check_size
from repflow.tasks.prompt import Prompt, Prompts, bos_prefix, token_strings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FILLERS = ("zeros", "random")
RECALL = 20  # purpose of a Draw
POWER = 0.01
"""Exponent of Arora et al. and of paper 2's code."""


@dataclass(frozen=True)
class RecallSetting:
    """One kind of rows.

    Attributes:
        length: tokens of a row.
        pairs: keys with their values, each queried once.
        vocabulary: token ids; keys are 1 to vocabulary / 2 − 1, values the upper half.
        power: of the places of the queries; 1 spreads them evenly.
        filler: `zeros` or `random`.
        repeat_keys: draw keys with replacement.
        repeat_values: draw values with replacement.
        without: ids that are never drawn as key or value, such as padding.

    >>> RecallSetting(length=64, pairs=16).keys, RecallSetting(length=12, pairs=3, vocabulary=10).values
    (4095, 5)
    """

    length: int
    pairs: int
    vocabulary: int = 8192
    power: float = POWER
    filler: str = "zeros"
    repeat_keys: bool = False
    repeat_values: bool = False
    without: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse rows that cannot be made."""
        check_size(self.length, 1)
        if self.filler not in FILLERS:
            raise InputError(
                teach(f"filler {' or '.join(FILLERS)}", repr(self.filler), nearest(str(self.filler), FILLERS))
            )
        if not abs(self.power) < float("inf"):
            raise InputError(teach("a finite power", f"{self.power}", f"Arora et al. have {POWER}"))
        most = self.length // 4
        if not 1 <= self.pairs <= most:
            expected = f"from 1 to {most} pairs in {self.length} tokens, of which a pair and its query take 4"
            raise InputError(teach(expected, str(self.pairs), "pass fewer pairs or a larger length"))
        for name, count, repeated in (
            ("keys", self.keys, self.repeat_keys),
            ("values", self.values, self.repeat_values),
        ):
            need = 1 if repeated else self.pairs
            if count < need:
                expected = f"a vocabulary with at least {need} {name} for {self.pairs} pairs"
                got = f"{max(count, 0)} of {self.vocabulary} ids"
                raise InputError(teach(expected, got, "pass fewer pairs, or use a model with a larger vocabulary"))

    @property
    def keys(self) -> int:
        """Number of ids that keys are drawn from."""
        half = self.vocabulary // 2
        return half - 1 - sum(0 < token < half for token in set(self.without))

    @property
    def values(self) -> int:
        """Number of ids that values are drawn from."""
        half = self.vocabulary // 2
        return self.vocabulary - half - sum(half <= token < self.vocabulary for token in set(self.without))

    @property
    def places(self) -> int:
        """Places for queries, every second token behind the pairs."""
        return (self.length - 2 * self.pairs) // 2

    def facts(self) -> dict[str, Any]:
        """Fields as plain JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"without": list(self.without)}


@dataclass(frozen=True)
class RecallRows:
    """Rows with their queries.

    Attributes:
        ids: token ids (row, token).
        positions: token of each query (row, query).
        targets: value that is asked for there (row, query).
        pairs: number of the pair that holds it (row, query), from 0.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    pairs: Tensor

    @property
    def distances(self) -> Tensor:
        """Tokens from the value in its pair to the query (row, query); at least 1."""
        return self.positions - 2 * self.pairs - 1


def recall_rows(setting: RecallSetting, rows: int, generator: torch.Generator) -> RecallRows:
    """Draw rows on the generator's device; every row is a new one.

    Args:
        setting: of the rows.
        rows: how many.
        generator: what is drawn depends on its state and its kind of device alone.

    >>> import torch
    >>> made = recall_rows(RecallSetting(length=12, pairs=2, vocabulary=16), 1, torch.Generator().manual_seed(0))
    >>> made.ids.tolist(), made.positions.tolist(), made.targets.tolist()
    ([[2, 8, 6, 10, 2, 0, 0, 0, 6, 0, 0, 0]], [[4, 8]], [[8, 10]])
    """
    import torch

    device, pairs = generator.device, setting.pairs
    keys, values = _ids(setting, device)
    key = keys[_choice(len(keys), pairs, rows, setting.repeat_keys, generator)]
    value = values[_choice(len(values), pairs, rows, setting.repeat_values, generator)]
    place = torch.arange(1, setting.places + 1, device=device, dtype=torch.float32)
    # the smallest of exponential times, each by its rate, are a draw without replacement by the rates
    times = torch.empty(rows, setting.places, device=device).exponential_(generator=generator)
    times = times * place ** (1 - setting.power)
    positions = 2 * pairs + 2 * times.topk(pairs, dim=1, largest=False, sorted=True).indices
    shape = (rows, setting.length)
    if setting.filler == "random":
        ids = torch.randint(0, setting.vocabulary, shape, device=device, generator=generator)
    else:
        ids = torch.zeros(shape, dtype=torch.int64, device=device)
    ids[:, 0 : 2 * pairs : 2], ids[:, 1 : 2 * pairs : 2] = key, value
    ids.scatter_(1, positions, key)
    number = torch.arange(pairs, device=device).expand(rows, pairs)
    if setting.repeat_keys:
        same = key[:, :, None] == key[:, None, :]
        number = torch.where(same, number[:, None, :], -1).amax(2)
        value = value.gather(1, number)
    return RecallRows(ids, positions, value, number)


def _choice(count: int, size: int, rows: int, repeated: bool, generator: torch.Generator) -> Tensor:
    """Indices (row, size) below count, each row with or without replacement."""
    import torch

    device = generator.device
    if repeated:
        return torch.randint(0, count, (rows, size), device=device, generator=generator)
    return torch.rand(rows, count, device=device, generator=generator).topk(size, dim=1).indices


@functools.lru_cache(maxsize=64)
def _ids(setting: RecallSetting, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids that keys and values are drawn from."""
    import torch

    half, out = setting.vocabulary // 2, set(setting.without)
    keys = [token for token in range(1, half) if token not in out]
    values = [token for token in range(half, setting.vocabulary) if token not in out]
    return torch.tensor(keys, device=device), torch.tensor(values, device=device)


def read_rows(ids: Tensor, positions: Tensor, pairs: int) -> RecallRows:
    """Queries of rows from elsewhere, whose first 2 · pairs tokens are pairs.

    Args:
        ids: token ids (row, token).
        positions: token of each query (row, query).
        pairs: pairs of a row.

    Raises:
        InputError: a query stands before or inside the pairs, or its key is in none; names row and token.

    >>> import torch
    >>> read_rows(torch.tensor([[5, 9, 6, 8, 6, 0, 5]]), torch.tensor([[4, 6]]), 2).targets.tolist()
    [[8, 9]]
    """
    import torch

    if ids.ndim != 2 or positions.ndim != 2 or len(ids) != len(positions) or not 0 < 2 * pairs < ids.shape[1]:
        got = f"{tuple(ids.shape)} and {tuple(positions.shape)} with {pairs} pairs"
        raise InputError(
            teach("ids (row, token) and positions (row, query), behind the pairs", got, "give one row each")
        )
    outside = (positions < 2 * pairs) | (positions >= ids.shape[1])
    if bool(outside.any()):
        row, query = (int(place) for place in outside.nonzero()[0])
        expected = f"queries behind the {pairs} pairs, from token {2 * pairs} to {ids.shape[1] - 1}"
        got = f"one at token {int(positions[row, query])} of row {row}"
        raise InputError(teach(expected, got, "move the query behind its pair"))
    queries = ids.gather(1, positions)
    same = queries[:, :, None] == ids[:, None, 0 : 2 * pairs : 2]
    number = torch.where(same, torch.arange(pairs, device=ids.device), -1).amax(2)
    if bool((number < 0).any()):
        row, query = (int(place) for place in (number < 0).nonzero()[0])
        got = f"{int(queries[row, query])} at token {int(positions[row, query])} of row {row}"
        raise InputError(teach("queries whose key is in a pair of their row", got, "correct the row"))
    return RecallRows(ids, positions, ids.gather(1, 2 * number + 1), number)


def recall_prompts(
    vocab_size: int,
    *,
    length: int,
    samples: int,
    seed: int = 0,
    pairs: int | None = None,
    index: int | None = None,
    classes: int | None = None,
    power: float = POWER,
    filler: str = "zeros",
    repeat_keys: bool = False,
    repeat_values: bool = False,
    tokenizer: Any = None,
    bos: str = "model",
    bos_id: int | None = None,
    without: Collection[int] = (),
) -> Prompts:
    """Rows as prompts that end with a query, so that their last token is where the value is asked for.

    The last query is that of the gold pair, whose index is swept as in kvpr; the label is the index or its bin.
    Sample i depends on the seed and i alone.

    Args:
        vocab_size: of the model.
        length: most tokens per prompt; what follows the last query is cut off.
        samples: number of prompts.
        seed: of the run.
        pairs: per prompt; as many as fit if left out.
        index: of the gold pair from 0; swept and balanced if left out.
        classes: bins of the gold pair's relative position; every index is a class if left out.
        power: of the places of the queries.
        filler: `zeros` or `random`.
        repeat_keys: draw keys with replacement.
        repeat_values: draw values with replacement.
        tokenizer: for display and for the policy of the first token.
        bos: policy for the first token.
        bos_id: the first token, where the tokenizer names none.
        without: ids that are never drawn.

    >>> made = recall_prompts(16, length=12, samples=1)[0]
    >>> made.ids, made.key, made.label
    ((2, 11, 4, 13, 3, 9, 3, 0, 2, 0, 4), '4', 1)
    """
    check_size(length, samples)
    if seed < 0:
        raise InputError(teach("a seed of 0 or more", f"{seed}", "pass --seed 0"))
    prefix = bos_prefix(tokenizer, bos, bos_id)
    room = length - len(prefix)
    count = room // 4 if pairs is None else pairs
    setting = RecallSetting(
        length=room,
        pairs=count,
        vocabulary=vocab_size,
        power=power,
        filler=filler,
        repeat_keys=repeat_keys,
        repeat_values=repeat_values,
        without=tuple(sorted(without)),
    )
    gold = Gold(seed, index, classes)
    gold.check(count, "pairs", length)
    prompts = [_prompt(setting, gold, seed, sample, prefix, tokenizer) for sample in range(samples)]
    return Prompts("recall", tuple(prompts), gold.names(count))


def _prompt(
    setting: RecallSetting, gold: Gold, seed: int, sample: int, prefix: tuple[int, ...], tokenizer: Any
) -> Prompt:
    """Row of a sample in which the gold pair's query is the last one."""
    import torch

    generator = torch.Generator().manual_seed(int(Draw(seed, RECALL, sample).raw(1)[0]) >> 1)
    row = recall_rows(setting, 1, generator)
    place, last = gold.index(sample, setting.pairs), int(row.positions[0].argmax())
    ids, end = row.ids[0].clone(), int(row.positions[0, last])
    ids[int(row.positions[0, place])], ids[end] = ids[2 * last].item(), ids[2 * place].item()
    pair = int(row.pairs[0, place])  # of a repeated key, the last one
    whole = (*prefix, *ids[: end + 1].tolist())
    return Prompt(
        whole,
        None,
        tuple(token_strings(tokenizer, whole)),
        bool(prefix),
        label=gold.label(pair, setting.pairs),
        group=f"{seed}/{sample}",
        position=pair / max(setting.pairs - 1, 1),
        key=str(whole[-1]),
        items=setting.pairs,
    )


def recall_of(vocab_size: int, *, items: int | None, **options: Any) -> Prompts:
    """`recall_prompts` by the options of tasks, whose items are its pairs; named in `repflow.core.tasks`."""
    return recall_prompts(vocab_size, pairs=items, **options)
