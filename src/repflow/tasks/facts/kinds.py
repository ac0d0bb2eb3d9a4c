"""What made-up encyclopedia articles are made of: values, sentences without a fact, and the form of a kind of thing.

`{name}` is the thing, `{value}` the fact's value. A value is named by a list of VALUES or by a maker of
`repflow.tasks.facts.articles`: person, place, year, date, or `LOW-HIGH UNIT` for a number.
"""

from __future__ import annotations

from typing import NamedTuple


def _list(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(","))


VALUES: dict[str, tuple[str, ...]] = {
    "material": _list(
        "granite, limestone, sandstone, basalt, marble, red brick, oak, cedar, larch, slate, copper, bronze, "
        "cast iron, tin, green glass, rammed earth"
    ),
    "colour": _list(
        "crimson, indigo, saffron, emerald, violet, ivory, scarlet, azure, amber, turquoise, maroon, ochre"
    ),
    "crop": _list(
        "barley, flax, rye, buckwheat, hops, lentils, plums, quinces, almonds, walnuts, cider, heather honey"
    ),
    "animal": _list(
        "otters, herons, mountain goats, badgers, swans, hares, lynxes, storks, beavers, cranes, eels, voles"
    ),
    "instrument": _list(
        "oboe, cello, bassoon, lute, harp, trumpet, viola, clarinet, organ, flute, harpsichord, zither"
    ),
    "science": _list("optics, botany, geology, acoustics, astronomy, hydraulics, metallurgy, zoology, meteorology"),
    "ware": _list(
        "pocket watches, sewing needles, gunpowder, writing paper, window glass, porcelain, bicycles, typewriters, "
        "lamp oil, matches, rope, beeswax candles"
    ),
    "illness": _list("cholera, typhus, scurvy, malaria, smallpox, influenza, diphtheria, measles, tetanus"),
    "weather": _list("fog, a thunderstorm, heavy snow, a sandstorm, freezing rain, a spring flood, a solar eclipse"),
    "use": _list("a customs house, a prison, a grain store, an observatory, a hospital, a silk mill, a school, a mint"),
}


class Fact(NamedTuple):
    """One thing to know about an article's subject.

    Attributes:
        value: list of VALUES, or maker.
        sentences: without their full stop.
        questions: in lower case and without a mark, as Natural Questions has them.
    """

    value: str
    sentences: tuple[str, ...]
    questions: tuple[str, ...]


class Kind(NamedTuple):
    """A kind of thing.

    Attributes:
        title: title of an article.
        lead: first sentences.
        facts: what else is stated; one of them is asked.
    """

    title: str
    lead: tuple[str, ...]
    facts: tuple[Fact, ...]


ASIDES: tuple[str, ...] = (
    "Little else is recorded from the early years",
    "The local archive was lost in a fire and has been rebuilt from copies",
    "A short account appears in most regional guides",
    "Opinions on the matter still differ among historians",
    "A small museum keeps letters, tools and drawings from that time",
    "The name is older than any written source",
    "Visitors are few, but their number has grown in recent years",
    "Several later accounts repeat an error of the first edition",
    "It is mentioned twice in the chronicles of the province",
    "A plaque was put up by the historical society",
    "Photographs from the last century show how much has changed since",
    "Much of what is told about it today comes from a single travel book",
    "Schoolchildren of the district learn a song about it",
    "Two lines of a well known ballad refer to it",
    "The parish register confirms only part of this story",
    "A commission was set up to study the question, without result",
    "Its hundredth anniversary passed almost unnoticed",
    "The original documents are kept in the capital and are rarely shown",
    "There are plans to restore what remains",
    "An earlier name is found on a few old maps",
    "Newspapers of the day reported on it at length",
    "It has given its name to a street and to a small prize",
)
