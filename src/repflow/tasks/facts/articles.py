"""A built-in encyclopedia of made-up facts: as many articles as prompts, each with at most one question.

Nothing in it is true, so that no model can know an answer from its training. Article i of a seed depends on the two
alone. Articles are on shelves of 512; the distractors of a question come from its own shelf, where other articles of
the same kind state the same facts of other things.
"""

from __future__ import annotations

from functools import lru_cache

from repflow.tasks.draw import Draw
from repflow.tasks.facts.kinds import ASIDES, VALUES
from repflow.tasks.facts.table import KINDS
from repflow.tasks.passages import OTHERS, Passage, Question, plain, random_numbers, without_answers
from repflow.tasks.ranking import Ranking

ARTICLE = 40  # purpose of a Draw
SHELF = 512
WORDS = 80
"""Words of an article, about; a passage of Natural Questions has 100."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


STARTS = _words(
    "Ar Bel Bor Cal Cor Dal Dor El Fal Fen Gar Gil Hal Hel Ir Jar Kel Kor Lan Lor Mal Mer Mor Nal Nor Ol Or Pel Quen "
    "Ral Ren Sal Sel Sor Tal Tor Ul Val Vel Vor Wen Yar Zel Thal Bran Dren Gral Stor"
)
MIDDLES = _words(
    "a e i o u ba be bo da de di do ga go ka ke ko la le li lo ma me mi mo na ne ni no ra re ri ro sa se so ta te ti "
    "to va ve vi vo"
)
ENDS = _words(
    "bar bek burg dan den dor dorf fell gard grad ham heim holt kand kirk lan lin lund mar mere mond mont nes ness nor "
    "rath rin ros sted stein tal thal tor val vik ville vorn wald wick worth"
)
GIVEN = _words(
    "Ada Alma Anton Aron Berta Boris Carla Cyril Dora Edgar Elsa Emil Erna Felix Flora Georg Greta Hanna Hugo Ida Igor "
    "Irma Jonas Julia Karl Klara Leo Lena Magda Max Mina Nils Nora Olga Oskar Paula Petra Rosa Rudolf Selma Sven Thea "
    "Theo Ulla Victor Wanda Xenia Yuri"
)
MONTHS = _words("January February March April May June July August September October November December")
NAMES = len(STARTS) * len(MIDDLES) * len(ENDS)


def made_up_name(number: int) -> str:
    """Name of its own for every number.

    >>> made_up_name(0), made_up_name(1), len({made_up_name(n) for n in range(90_000)})
    ('Arabar', 'Belabar', 90000)
    """
    again, rest = divmod(number, NAMES)
    rest, start = divmod(rest, len(STARTS))
    end, middle = divmod(rest, len(MIDDLES))
    more = "".join(MIDDLES[int(digit)] + "n" for digit in str(again)) if again else ""
    return f"{STARTS[start]}{MIDDLES[middle]}{more}{ENDS[end]}"


def subject_name(seed: int, article: int) -> str:
    """Name that no other article of the seed has: neighbours on a shelf get names far apart."""
    stride = 48_271  # a prime, so that it shares no factor with the number of names
    again, place = divmod(article, NAMES)
    return made_up_name(again * NAMES + (place * stride + _first_name(seed)) % NAMES)


@lru_cache(maxsize=8)
def _first_name(seed: int) -> int:
    return Draw(seed, ARTICLE).below(NAMES)


def value_of(maker: str, draw: Draw) -> str:
    """A value for a fact.

    >>> value_of("80-990 kilometres", Draw(1))
    '257 kilometres'
    """
    if maker in VALUES:
        return draw.choose(VALUES[maker])
    if maker == "person":
        return f"{draw.choose(GIVEN)} {made_up_name(draw.below(NAMES))}"
    if maker == "place":
        return made_up_name(draw.below(NAMES))
    if maker == "year":
        return str(1210 + draw.below(760))
    if maker == "date":
        return f"{1 + draw.below(28)} {draw.choose(MONTHS)} {1610 + draw.below(370)}"
    span, _, unit = maker.partition(" ")
    low, _, high = span.partition("-")
    return f"{int(low) + draw.below(int(high) - int(low))} {unit}"


@lru_cache(maxsize=4096)
def article(seed: int, number: int) -> tuple[Passage, Question]:
    """Article and the question asked about it."""
    draw = Draw(seed, ARTICLE, number)
    kind = draw.choose(KINDS)
    name = subject_name(seed, number)
    if kind.title == "{person}":
        name = f"{draw.choose(GIVEN)} {name}"
    values = [value_of(fact.value, draw) for fact in kind.facts]
    lines = [
        draw.choose(fact.sentences).format(name=name, value=value)
        for fact, value in zip(kind.facts, values, strict=True)
    ]
    lead = draw.choose(kind.lead).format(name=name)
    rest = _filled(lead, lines, draw)
    sentences = [lead, *(rest[place] for place in draw.order(len(rest)))]
    number_asked = draw.below(len(kind.facts))
    passage = Passage(kind.title.format(name=name, person=name), " ".join(f"{_upper(s)}." for s in sentences))
    question = draw.choose(kind.facts[number_asked].questions).format(name=name.lower())
    return passage, Question(question, (values[number_asked],), number, f"fact {number}")


def _filled(lead: str, sentences: list[str], draw: Draw) -> list[str]:
    """The facts, and as many asides as make articles about equally long: prompts then come near their length."""
    filled = list(sentences)
    words = len(lead.split()) + sum(len(sentence.split()) for sentence in sentences)
    for place in draw.order(len(ASIDES)):
        if words >= WORDS:
            break
        filled.append(ASIDES[place])
        words += len(ASIDES[place].split())
    return filled


def _upper(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


class FactLibrary:
    """The built-in encyclopedia as a library for multi-document prompts."""

    def __init__(self, seed: int, distractors: str) -> None:
        self.seed = seed
        self._by_rank = distractors == "bm25"
        self._shelf: tuple[int, list[str], Ranking | None] = (-1, [], None)

    def question(self, sample: int) -> Question:
        """Question about article `sample`."""
        return article(self.seed, sample)[1]

    def passage(self, number: int) -> Passage:
        """An article by its number."""
        return article(self.seed, number)[0]

    def distractors(self, sample: int, count: int) -> list[int]:
        """Articles of the same shelf without the answer."""
        first = sample // SHELF * SHELF
        if self._shelf[0] != first:
            texts = [plain(f"{p.title}\n{p.text}") for p in map(self.passage, range(first, first + SHELF))]
            self._shelf = (first, texts, Ranking(texts) if self._by_rank else None)
        _, texts, ranking = self._shelf
        question = self.question(sample)
        if ranking is None:
            order = random_numbers(Draw(self.seed, OTHERS, sample), SHELF, SHELF)
        else:
            order = ranking.best(question.text, SHELF)
        own = Question(question.text, question.answers, sample - first, question.group)
        places = without_answers(order, texts, own)
        return [first + place for place, _ in zip(places, range(count), strict=False)]
