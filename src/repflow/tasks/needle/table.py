"""What needles are made of: kinds of facts that everyone knows, each with its true values.

A needle says something false of a subject by planting another value of the same kind: "The capital of France is
Madrid." The other values of the kind are the candidates that the planted one is ranked against. Four of the kinds are
those of paper 2's Figure 8 (arXiv 2501.00658).
"""

from __future__ import annotations

from typing import NamedTuple


class NeedleKind(NamedTuple):
    """One kind of fact.

    Attributes:
        name: short name.
        statement: text with `{subject}` and, last, `{value}`.
        question: text with `{subject}`.
        facts: subject → true value.
        more: values that are true of no subject here, to be planted.
    """

    name: str
    statement: str
    question: str
    facts: dict[str, str]
    more: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """All values, each once."""
        return tuple(dict.fromkeys([*self.facts.values(), *self.more]))


def _facts(text: str) -> dict[str, str]:
    pairs = (entry.split(": ") for entry in text.split("; "))
    return {subject.strip(): value.strip() for subject, value in pairs}


def _more(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(";"))


KINDS: tuple[NeedleKind, ...] = (
    NeedleKind(
        "capital",
        "The capital of {subject} is {value}.",
        "What is the capital of {subject}?",
        _facts(
            "France: Paris; Spain: Madrid; Italy: Rome; Germany: Berlin; Austria: Vienna; Portugal: Lisbon; "
            "Greece: Athens; Norway: Oslo; Sweden: Stockholm; Finland: Helsinki; Denmark: Copenhagen; Poland: Warsaw; "
            "Hungary: Budapest; Ireland: Dublin; Russia: Moscow; Turkey: Ankara; Egypt: Cairo; Kenya: Nairobi; "
            "Japan: Tokyo; China: Beijing; Thailand: Bangkok; Canada: Ottawa; Cuba: Havana; Peru: Lima"
        ),
    ),
    NeedleKind(
        "inventor",
        "The {subject} was invented by {value}.",
        "Who invented the {subject}?",
        _facts(
            "telephone: Alexander Graham Bell; light bulb: Thomas Edison; dynamite stick: Alfred Nobel; "
            "printing press: Johannes Gutenberg; steam engine: James Watt; World Wide Web: Tim Berners-Lee; "
            "cotton gin: Eli Whitney; telegraph: Samuel Morse; wireless radio: Guglielmo Marconi; "
            "lightning rod: Benjamin Franklin"
        ),
        _more("Elon Musk; Walt Disney; Charlie Chaplin; Napoleon Bonaparte"),
    ),
    NeedleKind(
        "planet",
        "The {subject} planet in our solar system is {value}.",
        "What is the {subject} planet in our solar system?",
        _facts("largest: Jupiter; smallest: Mercury; hottest: Venus; most distant: Neptune; red: Mars"),
        _more("Earth; Saturn; Uranus"),
    ),
    NeedleKind(
        "country",
        "The country known for {subject} is {value}.",
        "Which country is known for {subject}?",
        _facts(
            "the Great Wall: China; the pyramids of Giza: Egypt; the Eiffel Tower: France; the Taj Mahal: India; "
            "Machu Picchu: Peru; the Colosseum: Italy; its fjords: Norway; the Acropolis: Greece; "
            "kangaroos: Australia; Mount Fuji: Japan; the Alhambra: Spain; maple syrup: Canada"
        ),
        _more("Brazil; Kenya; Iceland"),
    ),
    NeedleKind(
        "language",
        "The main language of {subject} is {value}.",
        "What is the main language of {subject}?",
        _facts(
            "Brazil: Portuguese; Mexico: Spanish; Austria: German; Egypt: Arabic; Iran: Persian; Israel: Hebrew; "
            "Australia: English; Ukraine: Ukrainian; Hungary: Hungarian; Greece: Greek; Turkey: Turkish; "
            "Japan: Japanese; Denmark: Danish"
        ),
    ),
    NeedleKind(
        "currency",
        "The currency of {subject} is the {value}.",
        "What is the currency of {subject}?",
        _facts(
            "Japan: yen; India: rupee; Russia: ruble; Mexico: peso; Poland: zloty; Brazil: real; Israel: shekel; "
            "Hungary: forint; Sweden: krona; Thailand: baht; South Korea: won; the United Kingdom: pound"
        ),
    ),
    NeedleKind(
        "painter",
        "The painter of {subject} is {value}.",
        "Who is the painter of {subject}?",
        _facts(
            "the Mona Lisa: Leonardo da Vinci; The Starry Night: Vincent van Gogh; Guernica: Pablo Picasso; "
            "The Scream: Edvard Munch; The Night Watch: Rembrandt; The Milkmaid: Johannes Vermeer; "
            "Water Lilies: Claude Monet; The Kiss: Gustav Klimt; The Birth of Venus: Sandro Botticelli; "
            "The Persistence of Memory: Salvador Dali"
        ),
    ),
    NeedleKind(
        "author",
        "The author of {subject} is {value}.",
        "Who is the author of {subject}?",
        _facts(
            "Hamlet: William Shakespeare; Don Quixote: Miguel de Cervantes; War and Peace: Leo Tolstoy; "
            "Pride and Prejudice: Jane Austen; Oliver Twist: Charles Dickens; Moby-Dick: Herman Melville; "
            "Dracula: Bram Stoker; Frankenstein: Mary Shelley; Crime and Punishment: Fyodor Dostoevsky; "
            "Animal Farm: George Orwell; the Odyssey: Homer; The Trial: Franz Kafka"
        ),
    ),
    NeedleKind(
        "composer",
        "The composer of {subject} is {value}.",
        "Who is the composer of {subject}?",
        _facts(
            "The Magic Flute: Mozart; The Four Seasons: Vivaldi; Swan Lake: Tchaikovsky; Carmen: Bizet; Aida: Verdi; "
            "Messiah: Handel; Bolero: Ravel; the Moonlight Sonata: Beethoven; The Rite of Spring: Stravinsky; "
            "Peer Gynt: Grieg; the Brandenburg Concertos: Bach"
        ),
    ),
    NeedleKind(
        "river",
        "The river that flows through {subject} is the {value}.",
        "Which river flows through {subject}?",
        _facts(
            "London: Thames; Paris: Seine; Cairo: Nile; Vienna: Danube; Rome: Tiber; Baghdad: Tigris; Prague: Vltava; "
            "Florence: Arno; New Orleans: Mississippi; Hamburg: Elbe; Warsaw: Vistula; Lisbon: Tagus; Cologne: Rhine"
        ),
    ),
    NeedleKind(
        "discoverer",
        "The person who discovered {subject} is {value}.",
        "Who discovered {subject}?",
        _facts(
            "penicillin: Alexander Fleming; gravity: Isaac Newton; radium: Marie Curie; oxygen: Joseph Priestley; "
            "the electron: Joseph Thomson; the moons of Jupiter: Galileo Galilei; hydrogen: Henry Cavendish; "
            "the neutron: James Chadwick"
        ),
        _more("Albert Einstein; Charles Darwin; Nikola Tesla"),
    ),
    NeedleKind(
        "founder",
        "The founder of {subject} is {value}.",
        "Who is the founder of {subject}?",
        _facts(
            "Microsoft: Bill Gates; Apple: Steve Jobs; Amazon: Jeff Bezos; Facebook: Mark Zuckerberg; "
            "IKEA: Ingvar Kamprad; the Virgin Group: Richard Branson; Oracle: Larry Ellison; Wikipedia: Jimmy Wales; "
            "Alibaba: Jack Ma"
        ),
    ),
    NeedleKind(
        "sport",
        "The sport that made {subject} famous is {value}.",
        "Which sport made {subject} famous?",
        _facts(
            "Diego Maradona: football; Roger Federer: tennis; Michael Jordan: basketball; Tiger Woods: golf; "
            "Usain Bolt: sprinting; Muhammad Ali: boxing; Michael Phelps: swimming; Wayne Gretzky: hockey; "
            "Magnus Carlsen: chess; Babe Ruth: baseball; Tony Hawk: skateboarding"
        ),
    ),
    NeedleKind(
        "young",
        "A young {subject} is called a {value}.",
        "What is a young {subject} called?",
        _facts(
            "dog: puppy; cat: kitten; cow: calf; horse: foal; sheep: lamb; goat: kid; bear: cub; swan: cygnet; "
            "duck: duckling; frog: tadpole; deer: fawn; kangaroo: joey; goose: gosling"
        ),
    ),
    NeedleKind(
        "mountain",
        "The highest mountain of {subject} is {value}.",
        "What is the highest mountain of {subject}?",
        _facts(
            "Japan: Fuji; Tanzania: Kilimanjaro; Greece: Olympus; Turkey: Ararat; Argentina: Aconcagua; "
            "Russia: Elbrus; the United States: Denali; Nepal: Everest; Morocco: Toubkal; "
            "Scotland: Ben Nevis; Italy: Mont Blanc"
        ),
    ),
    NeedleKind(
        "pioneer",
        "The first person {subject} was {value}.",
        "Who was the first person {subject}?",
        _facts(
            "on the Moon: Neil Armstrong; in space: Yuri Gagarin; to reach the South Pole: Roald Amundsen; "
            "to fly alone across the Atlantic: Charles Lindbergh; on the summit of Everest: Edmund Hillary"
        ),
        _more("Marco Polo; Christopher Columbus; James Cook; Amelia Earhart; David Livingstone"),
    ),
)
"""Every kind ends its statement with the value, so that a statement up to there is what a model must complete."""

LEAST_VALUES = min(len(kind.values) for kind in KINDS)
