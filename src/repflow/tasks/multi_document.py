"""mdqa, multi-document question answering (Liu et al. 2024): n documents, one of which holds the answer.

Write a high-quality answer for the given question using only the provided search results (some of which might be irrelevant).

Document [1](Title: Asian Americans in science and technology) Prize in physics for discovery of ...
Document [2](Title: List of Nobel laureates in Physics) The first Nobel Prize in Physics was awarded in 1901 to ...

Question: who got the first nobel prize in physics
Answer:
"""  # noqa: E501  the template's own line

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from repflow.tasks.draw import Draw
from repflow.tasks.fit import Draft
from repflow.tasks.gold import Gold
from repflow.tasks.passages import FileLibrary, Library, Passage, plain_passage, tells

SHUFFLE = 30  # purpose of a Draw
EVERY = 1 << 30
HEAD = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant).\n\n"
)


def document_head(number: int, title: str) -> str:
    """What precedes a document's text, numbered from 1.

    >>> document_head(1, "Scientist")
    'Document [1](Title: Scientist) '
    """
    return f"Document [{number}](Title: {title}) "


def multi_document_text(passages: Sequence[Passage], question: str) -> str:
    r"""Prompt for these documents in this order.

    >>> print(multi_document_text([Passage("A", "a is a."), Passage("B", "b is b.")], "what is b").partition("\n\n")[2])
    Document [1](Title: A) a is a.
    Document [2](Title: B) b is b.
    <BLANKLINE>
    Question: what is b
    Answer:
    """
    documents = [document_head(at, passage.title) + passage.text for at, passage in enumerate(passages, start=1)]
    return HEAD + "\n".join(documents) + f"\n\nQuestion: {question}\nAnswer:"


@dataclass(frozen=True)
class MultiDocumentDrafts:
    """Prompts of a run, before it is known how many documents fit.

    Attributes:
        seed: seed of the run.
        gold: where the gold document goes.
        library: where questions and documents come from.
    """

    seed: int
    gold: Gold
    library: Library
    unit = "documents"
    uneven = True

    def most(self, sample: int) -> int | None:
        """All documents that there are without the answer, and the gold one."""
        return len(self.library.distractors(sample, EVERY)) + 1

    def draft(self, sample: int, items: int) -> Draft | None:
        """Prompt of a sample with this many documents; None where there are fewer.

        The hardest distractors are taken and shuffled. The least hard of them may be cut, wherever it is: were it
        always the last document in the prompt, a whole last document would say that it is the gold one.
        """
        question = self.library.question(sample)
        chosen = self.library.distractors(sample, items - 1)
        if len(chosen) < items - 1:
            return None
        order = [chosen[place] for place in Draw(self.seed, SHUFFLE, sample, items).order(len(chosen))]
        place = self.gold.index(sample, items)
        numbers = [*order[:place], question.passage, *order[place:]]
        passages = [self.library.passage(number) for number in numbers]
        text = multi_document_text(passages, question.text)
        loose = numbers.index(chosen[-1])
        before = multi_document_text(passages[:loose], "").rpartition("\n\nQuestion: ")[0] + ("\n" if loose else "")
        begin = len(before) + len(document_head(loose + 1, passages[loose].title))
        span = (begin, begin + len(passages[loose].text))
        answers_told = tells(plain_passage(passages[place]), question.answers)
        return Draft(text, place, question.answers, question.text, question.group, span, answers_told)


def open_library(file: str | None, seed: int, distractors: str) -> Library:
    """Library of a file, or the built-in one of made-up facts."""
    if file is not None:
        return FileLibrary(file, seed, distractors)
    from repflow.tasks.facts.articles import FactLibrary

    return FactLibrary(seed, distractors)
