"""The zoo's data, models, training, evaluation and card, on a setting of seconds."""

import importlib.util
import json
import lzma
import os
import re
import subprocess
import sys
import uuid
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from repflow.core.errors import InputError
from repflow.models import load
from repflow.models.weights.initialise import parameter_groups
from repflow.tasks import Encoder, make_task
from repflow.tasks.facts.articles import article
from repflow.tasks.key_value import key_value_text
from repflow.tasks.multi_document import multi_document_text
from tools.zoo import batches as zoo_batches
from tools.zoo.batches import BatchConfig, ZooBatches, chunks, draw_chunk
from tools.zoo.card import write_card
from tools.zoo.data import HELD_OUT_SEED, DataConfig, HeldOut, open_data, prepare
from tools.zoo.evaluate import evaluate, exact_match, prose_loss
from tools.zoo.facts import cut_articles, fact_row, read_facts
from tools.zoo.fast import _compiled, fast_forward
from tools.zoo.kvpr import ANSWER, FREE, kvpr_rows, layouts
from tools.zoo.loss import weighted_loss
from tools.zoo.make import main
from tools.zoo.models import NAMES, build, make_config
from tools.zoo.save import write_json
from tools.zoo.tokenizer import pairs, train_tokenizer
from tools.zoo.train import TrainConfig, train, train_network

ROOT = Path(__file__).resolve().parents[3]
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
END = "<|endoftext|>"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    corpus = tmp_path_factory.mktemp("zoo")
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    parts = [part for part in text.split("\n\n") if part.strip()]
    for name, chosen in (("train", parts[:-6]), ("valid", parts[-6:])):
        (corpus / f"{name}.txt.xz").write_bytes(lzma.compress(f"\n{END}\n".join(chosen).encode()))
    options = ["--vocabulary", "1024", "--length", "176", "--articles", "12", "--samples", "6"]
    options += ["--licence", "the licence's text=Apache-2.0"]
    assert main(["prepare", "--corpus", str(corpus), "--out", str(corpus / "data"), *options]) == 0
    return corpus / "data"


@pytest.fixture(scope="module")
def data(folder):
    return open_data(folder)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def config(folder, tmp_path_factory):
    batches = BatchConfig(batch=4, chunk=4)
    out = str(tmp_path_factory.mktemp("models") / "first")
    return TrainConfig(
        "gpt-neox", str(folder), out, size="tiny", steps=10, warmup=2, rate=5e-3, device="cpu", batches=batches
    )


@pytest.fixture(scope="module")
def trained(config):
    return train(config, say=lambda _: None)


# ---------------------------------------------------------------- tokenizer
def test_a_uuid_is_sixteen_pairs_and_four_dashes(tokenizer):
    rng = np.random.default_rng(5)
    for _ in range(20):
        text = str(uuid.UUID(bytes=rng.bytes(16)))
        expected = [text[at : at + 2] for part in (0, 9, 14, 19, 24) for at in _pair_starts(text, part)]
        tokens = tokenizer.encode(f'"{text}": "x"').tokens[1:21]
        assert [token for token in tokens if token != "-"] == expected
        assert [place for place, token in enumerate(tokens) if token == "-"] == [4, 7, 10, 13]


def _pair_starts(text, start):
    end = text.find("-", start)
    return range(start, len(text) if end < 0 else end, 2)


def test_every_pair_is_one_token_and_the_vocabulary_has_its_size(tokenizer):
    assert tokenizer.get_vocab_size() == 1024
    assert len({tokenizer.token_to_id(pair) for pair in pairs()} - {None}) == 256
    assert sorted(tokenizer.get_vocab().values()) == list(range(1024))


@pytest.mark.parametrize("text", ["Röntgen’s 12.5 μm\n\n  tabs\tand   blanks ", "added face deadbeef-12 2a8d601d"])
def test_text_comes_back_byte_for_byte(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_hexadecimal_words_outside_a_uuid_are_cut_as_words(tokenizer):
    assert tokenizer.pre_tokenizer.pre_tokenize_str("added face")[0][0] == "added"
    assert len(tokenizer.pre_tokenizer.pre_tokenize_str("added face")) == 2


def test_a_small_vocabulary_and_a_short_text_are_refused():
    with pytest.raises(InputError, match="expected a vocabulary of at least 1024; got 600; 256 bytes"):
        train_tokenizer(["a"], 600)
    with pytest.raises(InputError, match=r"expected a vocabulary of 4096; got \d+ from this text; pass more text"):
        train_tokenizer(["a few words"], 4096)


# ---------------------------------------------------------------- kvpr
@pytest.mark.parametrize(("items", "questions"), [(2, 1), (5, 1), (4, 3)])
def test_kvpr_ids_are_the_tasks_text_with_its_answer(data, tokenizer, items, questions):
    ids, roles = kvpr_rows(data.template, np.random.default_rng(1), 3, items, questions)
    assert ids.shape == (3, data.template.size(items, questions))
    for row, role in zip(ids, roles, strict=True):
        text = tokenizer.decode(row.tolist(), skip_special_tokens=False)
        matches = UUID.findall(text)
        asked = matches[2 * items :]
        rows = list(zip(matches[: 2 * items : 2], matches[1 : 2 * items : 2], strict=True))
        gold = [[key for key, _ in rows].index(key) for key in asked[::2]]
        assert asked[1::2] == [rows[place][1] for place in gold]
        assert len(set(gold)) == questions
        expected = key_value_text(rows, gold[0]) + asked[1]
        for place in gold[1:]:
            expected += f'\n\nKey: "{rows[place][0]}"\nCorresponding value:{rows[place][1]}'
        assert text == expected + END
        assert tokenizer.encode(expected).ids == row[:-1].tolist()
        answers = [tokenizer.decode([token]) for token in row[role == ANSWER][:-1]]
        assert "".join(answers) == "".join(asked[1::2])
        assert "".join(tokenizer.decode([token]) for token in row[role == FREE]) == "".join(matches[: 2 * items])
        assert all(uuid.UUID(entry).version == 4 for entry in matches)


def test_every_pair_is_asked_for_about_equally_often(data):
    ids, roles = kvpr_rows(data.template, np.random.default_rng(2), 600, 3)
    answers = ids[:, roles[0] == ANSWER][:, :-1]
    starts = [data.template.size(item + 1) - data.template.size(1) for item in range(3)]
    begin = len(data.template.head) + 20 + len(data.template.inner)
    places = np.stack([(ids[:, begin + start : begin + start + 20] == answers).all(1) for start in starts])
    assert (places.sum(0) == 1).all()
    assert np.abs(places.sum(1) - 200).max() < 60


def test_layouts_fit_and_hold_the_longest_prompt(data):
    for window in (165, 192, 272, 528):
        for plan in layouts(data.template, window):
            assert sum(data.template.size(*prompt) for prompt in plan) <= window
        most = data.template.most(window)
        assert layouts(data.template, window)[0] == [(most, 1)]
        assert data.template.size(most) <= window < data.template.size(most + 1)


# ---------------------------------------------------------------- numbered documents
def test_documents_are_the_tasks_text_with_its_answer(tokenizer):
    facts = read_facts(tokenizer, *cut_articles(tokenizer, 7, 6))
    known = {article(7, number)[0].title: article(7, number) for number in range(6)}
    rng = np.random.default_rng(0)
    for _ in range(5):
        ids, roles = fact_row(facts, rng, 1200)
        assert len(ids) <= 1200
        text = tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        titles = re.findall(r"\(Title: (.*?)\) ", text)
        assert len(titles) == len(set(titles)) >= 2
        asked = text.partition("\nQuestion: ")[2].partition("\n")[0]
        gold = next(known[title] for title in titles if known[title][1].text == asked)
        expected = multi_document_text([known[title][0] for title in titles], asked) + f" {gold[1].answers[0]}"
        assert text == expected + END
        assert tokenizer.encode(expected).ids == ids[:-1].tolist()
        assert tokenizer.decode(ids[roles == ANSWER][:-1].tolist()) == f" {gold[1].answers[0]}"


# ---------------------------------------------------------------- batches and the prepared folder
def test_batches_depend_on_seed_and_number_alone(data):
    config = BatchConfig(batch=6, chunk=3, seed=4)
    first, again = draw_chunk(data, config, 1), draw_chunk(data, config, 1)
    assert np.array_equal(first.ids, again.ids)
    assert np.array_equal(first.weights, again.weights)
    for other in (draw_chunk(data, config, 2), draw_chunk(data, replace(config, seed=5), 1)):
        assert not np.array_equal(first.ids, other.ids)
    streamed = list(chunks(data, config, 4))
    assert len(streamed) == 2
    assert np.array_equal(streamed[1].ids, first.ids)


def test_a_batch_is_half_prose_and_weighs_answers(data):
    chunk = draw_chunk(data, BatchConfig(batch=6, chunk=3, answer_weight=7.0), 0)
    assert chunk.ids.shape == (3, 6, data.window)
    whole = data.prose.tobytes()
    assert all(row.tobytes() in whole for row in chunk.ids[:, :3].reshape(9, -1))
    assert (chunk.weights[:, :3] == 1).all()
    assert set(np.unique(chunk.weights[:, 3:])) == {0.0, 1.0, 7.0}
    assert ((chunk.weights[:, 3:] == 7).sum(-1) >= 21).all()


def test_numbered_documents_come_where_they_fit(data, tokenizer):
    parts, bounds = cut_articles(tokenizer, 7, 6)
    wide = replace(data, facts_of=data.facts_of | {"window": 1100}, facts=read_facts(tokenizer, parts, bounds))
    chunk = draw_chunk(wide, BatchConfig(batch=8, chunk=1, mdqa=0.5), 0)
    texts = [tokenizer.decode(row.tolist()) for row in chunk.ids[0]]
    assert [text.startswith("Extract") for text in texts[4:]] == [True, True, False, False]
    assert all(text.startswith("Write a high-quality") for text in texts[6:])


def test_what_fails_while_batches_are_drawn_is_raised(data, monkeypatch):
    monkeypatch.setattr(zoo_batches, "draw_chunk", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(chunks(data, BatchConfig(batch=2), 1))
    monkeypatch.undo()
    small = replace(data, facts_of=data.facts_of | {"window": 100})
    with pytest.raises(InputError, match=r"expected a window of at least \d+ tokens; got 100; prepare with a larger"):
        draw_chunk(small, BatchConfig(batch=2, chunk=1), 0)


def test_held_out_prompts_are_the_tasks_own_and_not_in_training(data, folder, tokenizer):
    held = data.held_out["kvpr-176"]
    own = load_tokenizer(folder)
    prompts = make_task("kvpr").prompts(Encoder(own), length=171, samples=6, seed=HELD_OUT_SEED)
    for place, prompt in enumerate(prompts):
        size = held.prompt[place]
        assert held.ids[place, :size].tolist() == list(prompt.ids)
        answer = held.ids[place, size : size + held.answer[place]].tolist()
        assert tokenizer.decode(answer) == prompt.answers[0]
    assert held.ids.shape[1] <= data.window
    seen = set(UUID.findall(" ".join(tokenizer.decode(row.tolist()) for row in _retrieval(data))))
    asked = {answer for prompt in prompts for answer in prompt.answers}
    assert len(seen) > 20
    assert not asked & seen


def load_tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _retrieval(data):
    return draw_chunk(data, BatchConfig(batch=8, chunk=2), 0).ids[:, 4:].reshape(8, -1)


def test_a_changed_or_missing_folder_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="expected a folder that `prepare` wrote"):
        open_data(tmp_path)
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ids = np.load(tmp_path / "valid.npy")
    np.save(tmp_path / "valid.npy", ids[::-1])
    with pytest.raises(InputError, match=r"expected valid.npy as it was prepared; got other bytes; prepare"):
        open_data(tmp_path)
    (tmp_path / "valid.npy").unlink()
    with pytest.raises(InputError, match=r"expected valid.npy as it was prepared; got no such file in .*; prepare"):
        open_data(tmp_path)
    with pytest.raises(InputError, match=r"expected the corpus train.txt.xz in .*; pass corpus"):
        prepare(DataConfig(str(tmp_path / "none"), str(tmp_path / "out")))


# ---------------------------------------------------------------- models
def test_the_six_models_have_about_equal_parameters():
    from transformers import AutoModelForCausalLM

    for size, aim in (("4m", 4.75e6), ("8m", 8e6)):
        counts = {}
        for name in NAMES:
            config = make_config(name, size, 4096, 528)
            with torch.device("meta"):
                network = AutoModelForCausalLM.from_config(config)
            counts[name] = sum(p.numel() for p in {id(p): p for p in network.parameters()}.values())
            assert network.get_input_embeddings().weight.shape == (4096, config.hidden_size)
            assert config.tie_word_embeddings
        assert max(counts.values()) < 1.04 * min(counts.values())
        assert abs(counts["gpt-neox"] - aim) < 0.05 * aim


def test_ssms_have_twice_the_blocks_and_hybrids_mirror_each_other():
    blocks = {name: make_config(name, "4m", 4096, 528).num_hidden_layers for name in NAMES}
    assert blocks["mamba"] == blocks["mamba2"] == 2 * blocks["gpt-neox"] == 2 * blocks["gpt-neo"]
    kinds = [make_config(name, "4m", 4096, 528).layers_block_type for name in ("hybrid", "hybrid-mirror")]
    assert kinds[0] == kinds[1][::-1]
    assert kinds[0][-1] == "full_attention"
    assert kinds[0].count("full_attention") == 3
    with pytest.raises(InputError, match="unknown model 'mamba3'; did you mean mamba"):
        make_config("mamba3", "4m", 4096, 528)
    with pytest.raises(InputError, match="unknown size '5m'"):
        make_config("mamba", "5m", 4096, 528)


def test_hybrids_start_with_the_time_steps_of_mamba2():
    network = build("hybrid", "tiny", 1024, 64, 1)
    steps = [
        torch.nn.functional.softplus(p.detach()) for name, p in network.named_parameters() if name.endswith("dt_bias")
    ]
    assert all(0.001 <= float(step.min()) <= float(step.max()) <= 0.1 for step in steps)
    assert len(torch.cat(steps).unique()) == sum(map(len, steps))


@pytest.mark.parametrize(("name", "swapped"), [("gpt-neo", 2), ("gpt-neox", 0), ("hybrid", 0)])
def test_fused_attention_without_masks_gives_the_same(name, swapped):
    network = build(name, "tiny", 1024, 24, 0)
    ids = torch.randint(0, 1024, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in network.parameters():  # at random init attention is flat, and a wrong mask would not show
            parameter.mul_(4)
        own = network(ids).logits
        with fast_forward(network) as names:
            fused = network(ids).logits
    assert len(names) == swapped
    assert torch.allclose(fused, own, rtol=1e-4, atol=1e-4 * float(own.abs().max()))
    assert torch.equal(network(ids).logits.detach(), own)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_bamba_gives_the_same_on_the_kernels():
    """CI has the layers that it swaps in, one by one: tests/models/fastpath/layer_checks.py."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    script = Path(__file__).with_name("fast_check.py")
    ran = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=True)
    swapped, logits, gradients = json.loads(ran.stdout.splitlines()[-1])
    assert swapped == 2
    assert logits < 1e-5
    assert gradients < 1e-3


# ---------------------------------------------------------------- training
def test_the_loss_is_the_weighted_mean_over_the_next_tokens():
    draws = torch.Generator().manual_seed(8)
    logits = torch.randn(3, 5, 7, generator=draws, dtype=torch.float64)
    ids = torch.randint(0, 7, (3, 5), generator=draws)
    weights = torch.tensor([[1.0] * 5, [9, 0, 4, 1, 0], [4, 4, 0, 1, 4]])
    loss, prose, answers = weighted_loss(logits.clone(), ids, weights.clone(), 1)
    each = {}
    for row in range(3):
        for token in range(1, 5):
            each[row, token] = -float(torch.log_softmax(logits[row, token - 1], -1)[ids[row, token]])
    total = sum(float(weights[place]) for place in each)
    assert float(loss) == pytest.approx(sum(float(weights[place]) * each[place] for place in each) / total, rel=1e-5)
    assert float(prose) == pytest.approx(np.mean([each[0, token] for token in range(1, 5)]), rel=1e-5)
    assert float(answers) == pytest.approx(np.mean([each[1, 2], each[2, 1], each[2, 4]]), rel=1e-5)


@pytest.mark.parametrize("name", ["gpt-neox", "mamba2"])
def test_a_training_has_the_bits_of_the_plain_loop(name, config, data):
    """The zoo's recipe, written out: the loop in repflow.training must not change what a seed gives."""
    few = replace(config, name=name, steps=5, measure=False)
    ours, plain = (build(name, "tiny", data.vocabulary, data.window, 0) for _ in range(2))
    train_network(ours, few, data, say=lambda _: None)
    kinds = parameter_groups(plain.train())
    decayed = [p for name, p in plain.named_parameters() if kinds[name] in ("matrices", "convolutions")]
    rest = [p for name, p in plain.named_parameters() if kinds[name] not in ("matrices", "convolutions")]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=few.rate, betas=(0.9, 0.95))
    for step in range(5):
        done = (step - 2) / 3
        up, down = few.rate * (step + 1) / 2, few.rate * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * done)))
        chunk = draw_chunk(data, few.batches, step // 4)
        ids = torch.from_numpy(chunk.ids[step % 4].astype("int64"))
        weight = torch.roll(torch.from_numpy(chunk.weights[step % 4]), -1, 1)
        weight[:, -1] = 0
        for group in optimiser.param_groups:
            group["lr"] = up if step < 2 else down
        optimiser.zero_grad()
        with fast_forward(plain):
            logits = plain(input_ids=ids, use_cache=False).logits
        target = torch.roll(ids, -1, 1).flatten()
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target, reduction="none").view_as(weight)
        ((each * weight).sum() / weight.sum()).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimiser.step()
    for key, value in plain.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key


def test_batches_of_a_training_are_those_of_their_steps(data):
    with closing(ZooBatches(data, BatchConfig(batch=4, chunk=3, seed=2), 9, CPU)) as source:
        for step in (0, 1, 5, 6, 2, 8):
            chunk = draw_chunk(data, source.config, step // 3)
            assert np.array_equal(source.batch(step).inputs.numpy(), chunk.ids[step % 3])
            assert np.array_equal(source.batch(step).weights.numpy(), chunk.weights[step % 3])
        assert source.facts()["seed"] == 2


def test_ten_steps_lower_the_loss_and_keep_what_was_measured(trained, config, data):
    assert trained["steps"] == 10
    assert not trained["stopped_early"]
    assert trained["tokens"] == 10 * 4 * data.window
    assert trained["curve"][-1]["loss"] < trained["curve"][0]["loss"] - 0.2
    assert [entry["step"] for entry in trained["flow"]] == [0, 1, 10]
    for entry in trained["flow"]:
        assert len(entry["prose"]["token_similarity"]) == len(entry["kvpr"]["token_similarity"]) == 3
    assert trained["retrieval"][0]["step"] == 0
    assert trained["retrieval"][-1] | {"exact": 0} == {"step": 10, "set": "kvpr-176", "exact": 0, "of": 6}
    files = sorted(file.name for file in Path(config.out).iterdir())
    assert files == ["config.json", "model.safetensors", "training.json"]
    assert json.loads((Path(config.out) / "training.json").read_text()) == json.loads(json.dumps(trained))
    assert json.loads((Path(config.out) / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_same_seed_gives_the_same_weights_and_another_others(trained, config, tmp_path):
    plain = replace(config, measure=False)
    again = train(replace(plain, out=str(tmp_path / "again")), say=lambda _: None)
    other = train(replace(plain, out=str(tmp_path / "other"), seed=1), say=lambda _: None)
    assert again["digest"] == trained["digest"] != other["digest"]
    assert again["curve"] == trained["curve"]


@pytest.mark.parametrize("name", ["gpt-neo", "mamba", "mamba2", "hybrid-mirror"])
def test_every_model_trains_and_loads(name, config, tmp_path):
    few = replace(config, name=name, steps=2, warmup=1, measure=False, out=str(tmp_path / name))
    record = train(few, say=lambda _: None)
    assert np.isfinite([entry["gradient_norm"] for entry in record["curve"]]).all()
    model = load(tmp_path / name)
    assert sum(p.numel() for p in model.network.parameters()) == record["parameters"]


def test_a_time_limit_stops_and_saves(config, tmp_path, monkeypatch):
    monkeypatch.setattr("repflow.training.loop.CHECK", 2)
    short = replace(config, seconds=0.0, measure=False, out=str(tmp_path / "short"))
    record = train(short, say=lambda _: None)
    assert record["stopped_early"]
    assert record["steps"] == 2
    assert record["retrieval"][-1]["step"] == 2
    assert (tmp_path / "short" / "model.safetensors").is_file()


# ---------------------------------------------------------------- evaluation and card
def test_exact_match_is_what_greedy_generation_gives():
    network = build("gpt-neox", "tiny", 1024, 64, 3).eval()
    ids = torch.randint(1, 1024, (5, 12), generator=torch.Generator().manual_seed(1))
    for _ in range(6):
        with torch.no_grad():
            ids = torch.cat([ids, network(ids).logits[:, -1:].argmax(-1)], 1)
    rows = ids.numpy().astype(np.uint16)
    rows[1, 12] ^= 1
    rows[3, 17] ^= 1  # the answer's last token
    rows[4, 17] ^= 1  # behind its answer, which is a token shorter
    held = HeldOut(rows, np.full(5, 12), np.array([6, 6, 6, 6, 5]))
    assert exact_match(network, held, CPU).tolist() == [True, False, True, False, True]


def test_prose_loss_is_the_models_own():
    network = build("gpt-neox", "tiny", 1024, 64, 3).eval()
    ids = torch.randint(0, 1024, (75,), generator=torch.Generator().manual_seed(2))
    loss, tokens = prose_loss(network, ids.numpy().astype(np.uint16), 24, CPU)
    rows = ids[:72].view(3, 24)
    assert tokens == 69
    assert loss == pytest.approx(network(rows, labels=rows).loss.item(), rel=1e-5)


def test_the_card_holds_what_was_measured_and_nothing_else(trained, config, folder, data):
    out = Path(config.out)
    with pytest.raises(
        InputError, match=r"expected evaluation.json in .*; got none; run `tools.zoo.make` train and evaluate"
    ):
        write_card(out, folder)
    evaluation = evaluate(out, folder, device="cpu")
    bits = evaluation["prose"]["nats_per_token"] / np.log(2) * len(data.valid) / data.facts_of["valid_bytes"]
    assert evaluation["prose"]["bits_per_byte"] == pytest.approx(bits)
    text = write_card(out, folder)
    assert f"{trained['parameters']:,} parameters" in text
    assert f"{evaluation['prose']['nats_per_token']:.3f} nats" in text
    assert f"| kvpr-176 | {evaluation['retrieval']['kvpr-176']['tokens']} | 0 of 6 | 0.0% |" in text
    assert "2 are prose" in text
    assert "2 key-value pairs and 0 numbered documents" in text
    assert "Linear probes" not in text
    probe = {"labels": {"answer": {"accuracy": [0.1, 0.93], "chance": 0.07}}, "samples": 9, "length": 176, "seeds": 2}
    (out / "probe.json").write_text(json.dumps(probe))
    assert "first symbol of the value, by chance 0.07: 0.10 0.93" in write_card(out, folder)
    assert load(out).tokenizer("a")["input_ids"]


def test_new_weights_take_what_was_measured_of_the_old_ones_with_them(config, tmp_path):
    out = tmp_path / "again"
    out.mkdir()
    for name in ("evaluation.json", "probe.json", "README.md", "tokenizer.json"):
        (out / name).write_text("{}")
    train(replace(config, out=str(out), steps=1), say=lambda _: None)
    names = ["config.json", "model.safetensors", "tokenizer.json", "training.json"]
    assert sorted(file.name for file in out.iterdir()) == names


def test_the_card_needs_the_tokenizer(trained, config, tmp_path):
    (Path(config.out) / "evaluation.json").write_text("{}")
    with pytest.raises(
        InputError,
        match=r"expected tokenizer.json in .*; got none; name the folder that `tools.zoo.make prepare` wrote",
    ):
        write_card(config.out, tmp_path)
    (Path(config.out) / "evaluation.json").unlink()


def test_a_card_names_the_licences_that_were_told(data):
    licences = {"the licence's text": "Apache-2.0", "made-up facts and key-value pairs": "generated by repflow"}
    assert data.facts_of["licences"] == licences


def test_a_wrong_request_ends_with_code_2(tmp_path, capsys):
    asked = ["train", "mamba", "--data", str(tmp_path), "--out", str(tmp_path / "models")]
    assert main(asked) == 2
    assert "run `tools.zoo.make prepare` first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--steps", "-2", "expected --steps of at least 1; got -2"),
        ("--steps", "0", "expected --steps of at least 1; got 0"),
        ("--seed", "-1", "expected --seed from 0"),
        ("--batch", "0", "expected --batch of at least 1"),
        ("--chunk", "0", "expected --chunk of at least 1"),
        ("--warmup", "-1", "expected --warmup of at least 0"),
        ("--prose", "1.5", "expected --prose from 0 to 1; got 1.5"),
        ("--mdqa", "nan", "expected --mdqa from 0 to 1; got nan"),
        ("--rate", "nan", "expected --rate above 0; got nan"),
        ("--seconds", "0", "expected --seconds above 0; got 0"),
        ("--device", "nope", "expected a device such as cpu or cuda:0; got 'nope'"),
        ("--out", "file", "expected a folder for --out; got file/mamba, where a file is in the way"),
        ("--out", "models", "expected a folder for --out; got models/gpt-neox, where a file is in the way"),
    ],
)
def test_a_wrong_training_is_refused_before_anything_is_made(
    option, value, told, folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tools.zoo.train.train_network", lambda *_: pytest.fail("trained"))
    (tmp_path / "file").write_text("")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "gpt-neox").write_text("")
    before = sorted(tmp_path.rglob("*"))
    plain = ["train", "mamba", "gpt-neox", "--data", str(folder), "--out", "new", "--size", "tiny", "--steps", "1"]
    assert main([*plain, option, value]) == 2
    assert told in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_written_is_refused_before_training(config, tmp_path, monkeypatch):
    monkeypatch.setattr("tools.zoo.train.train_network", lambda *_: pytest.fail("trained"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        train(replace(config, out=str(tmp_path / "file" / "model")), say=lambda _: None)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["prepare", "--corpus", "none", "--out", "new"], "expected the corpus train.txt.xz in none"),
        (["prepare", "--corpus", "none", "--out", "file"], "expected a folder for --out; got file,"),
        (
            ["prepare", "--corpus", "none", "--out", "new", "--tokenizer-characters", "0"],
            "--tokenizer-characters of at",
        ),
        (["evaluate", "none", "--data", "none", "--limit", "0"], "expected --limit of at least 1"),
        (["seeds", "none", "--out", "folder"], "expected a file for --out; got folder, which is a folder"),
        (["seeds", "none", "--out", "file/seeds.json"], "expected a folder for --out; got file,"),
        (["prepare", "--corpus", "same", "--out", "new"], "got no document of valid.txt.xz that train.txt.xz has not"),
        (["prepare", "--corpus", "corpus", "--out", "new", "--licence", "CC0"], "expected --licence SOURCE=LICENCE"),
        (["train", "mamba", "--data", "same", "--out", "new"], "expected data.json of `prepare` in same"),
        (["digests", "none"], "expected models of the zoo in none; got none; name the folder"),
        (["digests", "folder"], "expected models of the zoo in folder; got none; name the folder"),
    ],
)
def test_other_wrong_steps_make_nothing(asked, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "digests.json").write_text('{"mamba": {}}')
    for corpus, valid in (("same", "a text"), ("corpus", "another text")):
        (tmp_path / corpus).mkdir()
        (tmp_path / corpus / "data.json").write_text("no json")
        for name, text in (("train", "a text"), ("valid", valid)):
            (tmp_path / corpus / f"{name}.txt.xz").write_bytes(lzma.compress(text.encode()))
    assert main(asked) == 2
    assert told in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["corpus", "file", "folder", "same"]
    assert (tmp_path / "folder" / "digests.json").read_text() == '{"mamba": {}}'


def test_records_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"a": 1.0, "b": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1.0, "b": None}
    monkeypatch.setattr("repflow.store.disk.write_all", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_json(tmp_path / "a.json", {"a": 2.0})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1.0, "b": None}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("name", ["gpt-neo", "gpt-neox", "hybrid"])
def test_compiled_parts_compute_the_same_and_leave_nothing_behind(name):
    network = build(name, "tiny", 256, 64, 0).train()
    ids = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(3))

    def pass_through():
        network.zero_grad()
        logits = network(input_ids=ids, use_cache=False).logits
        logits.square().mean().backward()
        return [logits.detach(), *(p.grad.clone() for p in network.parameters())]

    usual = pass_through()
    with _compiled(network, device="cpu", backend="aot_eager"):
        compiled = pass_through()
        assert any("forward" in vars(module) for module in network.modules())
    assert not any("forward" in vars(module) for module in network.modules())
    for one, other in zip(usual, compiled, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
