"""Libraries of questions and passages: files, ranking, the built-in encyclopedia."""

import gzip
import json
import math
import re
import sys
from collections import Counter

import pytest

from repflow.core.errors import InputError, MissingExtraError
from repflow.tasks import TaskOptions, make_task
from repflow.tasks.facts.articles import NAMES, SHELF, FactLibrary, article, made_up_name, subject_name
from repflow.tasks.passages import FileLibrary, Passage, plain, read_library
from repflow.tasks.ranking import Ranking
from tests.tasks.retrieval_inputs import bytes_encoder, write_library

WORD = re.compile(r"\w\w+")


def entry(i, **changes):
    return {"question": f"q{i}", "answers": [f"answer{i}"], "title": f"T{i}", "text": f"text of answer{i}"} | changes


def write(file, entries):
    file.write_text("".join(json.dumps(e) + "\n" for e in entries), encoding="utf-8")
    return file


def test_both_forms_of_a_file_give_the_same_library(tmp_path):
    flat = [entry(i) for i in range(4)]
    nested = [
        {
            "question": e["question"],
            "answers": e["answers"],
            "ctxs": [
                {"title": "Other", "text": "other words", "isgold": False},
                {"title": e["title"], "text": e["text"], "isgold": True},
            ],
        }
        for e in flat
    ]
    passages, questions = read_library(write(tmp_path / "flat.jsonl", flat))
    more, same = read_library(write(tmp_path / "nested.jsonl", nested))
    assert [passages[q.passage] for q in questions] == [more[q.passage] for q in same]
    assert set(more) == {*passages, Passage("Other", "other words")}, "passages beside the gold one are distractors too"
    packed = tmp_path / "flat.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "flat.jsonl").read_bytes()))
    assert read_library(packed) == (passages, questions)


def test_line_breaks_do_not_end_a_document(tmp_path):
    passages, questions = read_library(write(tmp_path / "l.jsonl", [entry(0, text="one\ntwo\r\nthree", answers="a")]))
    assert passages[0].text == "one two three"
    assert questions[0].answers == ("a",), "a single answer need not be a list"


def test_questions_that_share_a_passage_or_their_text_are_one_group(tmp_path):
    rows = [
        entry(0),
        entry(1, title="T0", text="text of answer0"),
        entry(2),
        entry(3, question="Q2 "),
        entry(4, question="q1"),
        entry(5),
    ]
    _, questions = read_library(write(tmp_path / "l.jsonl", rows))
    groups = [question.group for question in questions]
    assert groups[0] == groups[1] == groups[4]
    assert groups[2] == groups[3]
    assert len(set(groups)) == 3


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("{not json", "line 2: not a JSON object"),
        ("[1]", "line 2: expected an object with 'question', 'answers', 'title' and 'text'; got"),
        (json.dumps({"question": "q"}), "line 2: expected a string or a list of strings in 'answers'; got None"),
        (json.dumps(entry(0, question=3)), "line 2: expected an object with a string 'question'; got 3"),
        (json.dumps(entry(0, answers=[])), "line 2: expected a string or a list of strings in 'answers'"),
        (json.dumps(entry(0, answers=["", "a"])), "line 2: expected a string or a list of strings in 'answers'"),
        (
            json.dumps({"question": "q", "answers": ["a"], "text": "t"}),
            "line 2: expected an object with a string 'title'",
        ),
        (json.dumps(entry(0, text=" ")), "line 2: expected words in 'text'; got none"),
        (json.dumps({"question": "q", "answers": ["a"], "ctxs": []}), "line 2: expected a list of objects in 'ctxs'"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, bad, text):
    file = tmp_path / "l.jsonl"
    file.write_text(json.dumps(entry(1)) + "\n" + bad + "\n")
    with pytest.raises(InputError, match=re.escape(text)):
        make_task("mdqa", TaskOptions(documents=str(file))).prompts(bytes_encoder(), length=900, samples=1, seed=0)


@pytest.mark.parametrize("data", [b"no gzip", gzip.compress(b"{}" * 99, mtime=0)[:-9]], ids=["no gzip", "cut gzip"])
def test_a_broken_archive(tmp_path, data):
    (tmp_path / "l.jsonl.gz").write_bytes(data)
    with pytest.raises(InputError, match=r"expected gzipped text in .*; compress it again or unpack it"):
        read_library(tmp_path / "l.jsonl.gz")


def okapi(passages, query, k1=1.5, b=0.75):
    """BM25 from its formula, with Lucene's idf; the oracle for the package and for how it is called."""
    words = [Counter(WORD.findall(text)) for text in passages]
    sizes = [sum(count.values()) for count in words]
    mean = sum(sizes) / len(sizes)
    scores = []
    for count, size in zip(words, sizes, strict=True):
        score = 0.0
        for word in WORD.findall(query):
            holding = sum(word in other for other in words)
            if holding and word in count:
                idf = math.log(1 + (len(words) - holding + 0.5) / (holding + 0.5))
                score += idf * count[word] / (count[word] + k1 * (1 - b + b * size / mean))
        scores.append(score)
    return scores


def test_ranking_is_bm25():
    passages = [plain(f"{p.title}\n{p.text}") for p in (article(0, i)[0] for i in range(60))]
    ranking = Ranking(passages)
    for number in range(12):
        query = article(0, number)[1].text
        scores = okapi(passages, query)
        best = ranking.best(query, 60)
        assert number in best[:5], "the gold passage is among the best"
        assert [round(scores[i], 4) for i in best] == sorted((round(s, 4) for s in scores), reverse=True)


def test_ties_and_unknown_words_go_by_number():
    ranking = Ranking(["one two", "three four", "one two", "-"])
    assert ranking.best("two", 4) == [0, 2, 1, 3]
    assert ranking.best("never seen", 3) == [0, 1, 2]


def test_hard_distractors_are_those_that_rank_best(tmp_path):
    file = write_library(tmp_path / "towns.jsonl")
    library = FileLibrary(file, 0, "bm25")
    question = library.question(3)
    texts = [plain(f"{p.title}\n{p.text}") for p in library.passages]
    scores = okapi(texts, question.text)
    numbers = library.distractors(3, 5)
    others = sorted((-round(scores[i], 4), i) for i in range(len(texts)) if i != question.passage)
    assert numbers == [i for _, i in others[:5]]
    random = FileLibrary(file, 0, "random")
    assert random.distractors(3, 5) != random.distractors(3 + len(random.questions), 5), "each prompt has its own"
    assert set(random.distractors(3, 99)) == set(range(len(texts))) - {question.passage}


def test_a_passage_with_an_answer_is_dropped(tmp_path):
    rows = [entry(i) for i in range(6)]
    rows[1]["text"] = "here it stands: ANSWER0 in capitals"
    rows[2]["title"] = "About  answer0"
    rows[3]["text"] = "in 1947 and 47th"
    rows[0]["answers"] = ["answer0", "47"]
    library = FileLibrary(write(tmp_path / "l.jsonl", rows), 0, "random")
    sample = next(i for i in range(6) if library.question(i).text == "q0")
    assert sorted(library.distractors(sample, 99)) == [3, 4, 5], "a short answer counts as a word of its own only"
    rows[3]["text"] = "it is 47."
    library = FileLibrary(write(tmp_path / "l.jsonl", rows), 0, "random")
    assert sorted(library.distractors(sample, 99)) == [4, 5]


def test_every_question_comes_once_before_any_comes_twice(tmp_path):
    library = FileLibrary(write(tmp_path / "l.jsonl", [entry(i) for i in range(7)]), 5, "random")
    asked = [library.question(sample).text for sample in range(21)]
    assert [len(set(asked[at : at + 7])) for at in (0, 7, 14)] == [7, 7, 7]
    assert asked[:7] != asked[7:14]
    assert [library.question(sample).text for sample in (20, 0, 13)] == [asked[20], asked[0], asked[13]]


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    file = str(write_library(tmp_path / "towns.jsonl"))
    with pytest.raises(MissingExtraError, match=r"pip install 'repflow\[bm25\]', or pass distractors='random'"):
        make_task("mdqa", TaskOptions(documents=file)).prompts(bytes_encoder(), length=900, samples=1, seed=0)
    options = TaskOptions(documents=file, distractors="random")
    assert make_task("mdqa", options).prompts(bytes_encoder(), length=900, samples=1, seed=0)


def test_articles_are_many_and_different():
    articles = [article(1, i) for i in range(3000)]
    assert len({question.text for _, question in articles}) == 3000
    assert len({passage.title for passage, _ in articles}) == 3000
    assert len({passage.text for passage, _ in articles}) == 3000
    for passage, question in articles:
        assert plain(question.answers[0]) in plain(passage.text)
        assert "{" not in passage.text + question.text
    words = [len(passage.text.split()) for passage, _ in articles]
    assert min(words) > 70
    assert max(words) < 110
    starts = Counter(" ".join(question.text.split()[:2]) for _, question in articles)
    assert len(starts) > 25
    assert max(starts.values()) < 900


def test_no_name_is_given_twice_in_any_run():
    assert NAMES > 20_000
    assert len({subject_name(9, i) for i in range(25_000)}) == 25_000
    assert len({made_up_name(i) for i in range(0, 3 * NAMES, 7)}) == len(range(0, 3 * NAMES, 7))


def test_articles_depend_on_seed_and_number_alone():
    article.cache_clear()
    late = article(4, 2000)
    article.cache_clear()
    assert [article(4, i) for i in (1999, 2000)][1] == late
    assert article(5, 2000) != late


def test_distractors_of_the_encyclopedia_are_of_the_same_kind():
    library = FactLibrary(0, "bm25")
    for sample in (0, 3, SHELF + 1):
        numbers = library.distractors(sample, 8)
        assert sample not in numbers
        assert all(number // SHELF == sample // SHELF for number in numbers)
        asked = set(library.question(sample).text.split()) - {"the", "of", "was"}
        shared = [len(asked & set(plain(library.passage(number).text).split())) for number in numbers]
        others = [
            len(asked & set(plain(library.passage(n).text).split()))
            for n in FactLibrary(0, "random").distractors(sample, 60)
        ]
        assert sum(shared) / 8 > sum(others) / 60


@pytest.mark.shared
def test_natural_questions(shared_data):
    file = shared_data / "lost_in_the_middle" / "nq-open-oracle.jsonl.gz"
    library = FileLibrary(file, 0, "random")
    assert len(library.questions) == 2655
    first = next(q for q in library.questions if q.text == "who got the first nobel prize in physics")
    assert first.answers == ("Wilhelm Conrad Röntgen",)
    assert library.passages[first.passage].title == "List of Nobel laureates in Physics"
    options = TaskOptions(documents=str(file))
    prompts = make_task("mdqa", options).prompts(bytes_encoder(), length=4000, samples=20, seed=0)
    assert prompts[0].items > 5
    assert max(prompts.lengths) <= 4000


def test_a_line_whose_contexts_mark_no_gold_passage_is_refused(tmp_path):
    contexts = [{"title": "a", "text": "nothing here", "isgold": False}, {"title": "b", "text": "Rome it is"}]
    file = tmp_path / "nogold.jsonl"
    file.write_text(json.dumps({"question": "where", "answers": ["Rome"], "ctxs": contexts}) + "\n")
    with pytest.raises(InputError, match=r"line 1: expected 'isgold': true at one of the 'ctxs'; got none of 2"):
        read_library(file)
