"""Every typed value of paper 1 against a parse of the text it was typed from."""

import re

import pytest

from repflow.core.errors import InputError
from repflow.papers import values as papers

NUMBER = re.compile(r"\d+\.\d+")
SECTIONS = {"Multi-Document": "mdqa", "Key-Value": "kvpr"}


def parsed_tables(lines):
    """{(table, task, model, length): the numbers of the cell as strings} from the tab-separated rows of the text."""
    values, task, table = {}, "mean", 1
    for line in lines:
        if line.startswith("Table 1:"):
            table = 2
        for word, name in SECTIONS.items():
            if line.startswith(f"<i>{word}"):
                task = name
        model, *cells = line.split("\t")
        if model in papers.MODELS and len(cells) == 12:
            for column, length in enumerate(papers.LENGTHS):
                numbers = NUMBER.findall(" ".join(cells[3 * column : 3 * column + 3]))
                values[table, task, model, length] = numbers
    return values


@pytest.mark.shared
def test_every_cell_is_as_printed(texts):
    parsed = parsed_tables(texts[papers.FLOW])
    assert len(parsed) == 3 * 5 * 4
    typed = {(cell.table, cell.task, cell.model, cell.length): cell for cell in papers.TABLE_1.values()}
    typed |= {(cell.table, cell.task, cell.model, cell.length): cell for cell in papers.TABLE_2.values()}
    for key, numbers in parsed.items():
        assert (key in typed) == bool(numbers), key
        if numbers:
            assert [typed[key].value(q) for q in papers.QUANTITIES] == [float(number) for number in numbers], key
    assert len(typed) == sum(bool(numbers) for numbers in parsed.values()) == 54


@pytest.mark.shared
def test_the_parse_would_notice_a_wrong_digit(texts):
    changed = [line.replace("0.938", "0.939") for line in texts[papers.FLOW]]
    cell = papers.TABLE_1["GPT-Neo-2.7B", 300]
    assert float(parsed_tables(changed)[1, "mean", cell.model, 300][2]) != cell.smoothness


@pytest.mark.shared
@pytest.mark.parametrize("quote", [*papers.QUOTES, *papers.SIGNATURES.values()], ids=lambda q: f"{q.line}-{q.quantity}")
def test_quote_stands_on_its_line(texts, quote):
    assert quote.words in texts[quote.source][quote.line - 1]


@pytest.mark.parametrize("quote", papers.QUOTES, ids=lambda q: f"{q.line}-{q.subject}-{q.quantity}")
def test_numbers_of_a_quote_are_in_its_words(quote):
    words = quote.words.replace("nearly ", "").replace("three", "3").replace("four", "4").replace("1st", "1")
    numbers = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", words)}
    for value in {quote.low, quote.high} - {None, -100.0}:  # "0 % or even negative" has no lower end
        peak_without_end = quote.quantity == "peak_layer" and value == papers.layers_of(quote.subject)
        assert value in numbers or peak_without_end, (value, quote.words)


@pytest.mark.parametrize("quote", papers.QUOTES, ids=lambda q: f"{q.line}-{q.subject}-{q.quantity}")
def test_quotes_are_well_formed(quote):
    assert quote.subject in (*papers.MODELS, "TBM", "SSM", "all")
    assert (quote.low is None) == (quote.high is None)
    assert quote.low is None or quote.low <= quote.high
    if quote.layers is not None and quote.subject in papers.MODELS:
        first, last = quote.layers
        assert 1 <= first <= last <= papers.layers_of(quote.subject)


PERCENT = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s*\\?%")


@pytest.mark.shared
def test_no_percentage_of_the_results_is_left_out(texts):
    """Every percentage in the paper's sections on results is in the words of a quote of its line."""
    lines = texts[papers.FLOW]
    first, last = (next(i for i, line in enumerate(lines) if line.startswith(t)) for t in ("3.2 Token", "4 Theor"))
    count = 0
    for number in range(first + 1, last + 1):
        line = lines[number - 1]
        quoted = {
            p for q in papers.QUOTES if (q.source, q.line) == (papers.FLOW, number) for p in PERCENT.findall(q.words)
        }
        printed = set() if "\t" in line or line.startswith("Table") else set(PERCENT.findall(line))
        assert printed <= quoted, (number, printed - quoted)
        count += len(printed)
    assert count > 25


@pytest.mark.shared
def test_no_percentage_of_the_summaries_is_left_out(texts):
    """The same for the summaries, wherever they give a number; the second one has none."""
    by_name = {
        name: {p for line in texts[name] for p in PERCENT.findall(line)}
        for name in (papers.SUMMARY_1, papers.SUMMARY_2)
    }
    quotes = [*papers.QUOTES, *papers.SIGNATURES.values()]
    quoted = {p for q in quotes if q.source == papers.SUMMARY_1 for p in PERCENT.findall(q.words)}
    assert by_name[papers.SUMMARY_1] == quoted
    assert not by_name[papers.SUMMARY_2]


def test_lookups():
    assert papers.printed("mdqa", "gpt-neo-2.7b", 1000).drop == 23.4
    assert papers.printed("mean", "GPT-Neo-2.7B", 4000) is None
    assert papers.TABLE_2["kvpr", "Mamba2-130M", 4000].place.endswith("Mamba2-130M, n = 4K")
    with pytest.raises(InputError, match=r"unknown model of the paper 'gpt2'"):
        papers.checkpoint("gpt2")
    with pytest.raises(InputError, match=r"no length 512 .* known: 300, 1000"):
        papers.printed("mean", "Pythia-2.8B", 512)
    with pytest.raises(InputError, match=r"unknown task of the paper 'kvrp'; did you mean kvpr"):
        papers.printed("kvrp", "Pythia-2.8B", 300)
    with pytest.raises(InputError, match="unknown quantity"):
        papers.TABLE_1["Pythia-2.8B", 300].value("speed")


@pytest.mark.parametrize(
    ("model", "billions"),
    [("GPT-Neo-2.7B", 2.7), ("Pythia-2.8B", 2.8), ("Mamba2-130M", 0.13), ("Mamba-2.8B", 2.8), ("Mamba2-2.7B", 2.7)],
)
def test_shapes_have_the_size_in_the_name(model, billions):
    from repflow.studies.reproduce.cost import shape_size

    size = shape_size(papers.CHECKPOINTS[model].config)
    assert size.parameters == pytest.approx(billions * 1e9, rel=0.02)
    assert size.layers == papers.layers_of(model)
