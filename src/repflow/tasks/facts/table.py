"""What made-up encyclopedia articles are about: kinds of things, their facts, and how a fact is stated and asked."""

from __future__ import annotations

from repflow.tasks.facts.kinds import Fact, Kind


def _fact(value: str, sentences: str, questions: str) -> Fact:
    return Fact(value, tuple(sentences.split(" | ")), tuple(questions.split(" | ")))


KINDS: tuple[Kind, ...] = (
    Kind(
        "{name}",
        ("{name} is a market town in the north of its province", "The town of {name} lies where two old roads meet"),
        (
            _fact(
                "person",
                "{name} was founded by {value} | Its founder was {value}, a merchant's child",
                "who founded the town of {name} | who was the founder of {name}",
            ),
            _fact(
                "year",
                "It received its charter in {value} | A charter of {value} made it a free town",
                "when did {name} receive its town charter | in what year did {name} become a free town",
            ),
            _fact(
                "place",
                "The nearest railway station is at {value} | Trains stop no nearer than {value}",
                "what is the nearest railway station to {name} | where do trains for {name} stop",
            ),
            _fact(
                "crop",
                "Its fair is known for {value} | Every autumn there is a market of {value}",
                "what is the fair of {name} known for | what is sold every autumn at the market of {name}",
            ),
            _fact(
                "material",
                "The town hall is built of {value} | Its walls and gates are of {value}",
                "what is the town hall of {name} built of | of what material are the walls of {name}",
            ),
        ),
    ),
    Kind(
        "{name} River",
        ("The {name} is a river that never freezes", "The {name} River drains a wide and thinly settled plain"),
        (
            _fact(
                "place", "It rises near {value} | Its source is a spring at {value}", "where does the {name} river rise"
            ),
            _fact(
                "80-990 kilometres",
                "From source to mouth it measures {value} | The river is {value} long",
                "how long is the {name} river",
            ),
            _fact(
                "person",
                "It was first mapped by {value} | The first map of its course was drawn by {value}",
                "who first mapped the {name} river | who drew the first map of the {name}",
            ),
            _fact(
                "animal",
                "Its lower banks are home to {value} | Protected {value} live along the lower course",
                "which animals live on the lower {name} river",
            ),
            _fact(
                "year",
                "The great dam was closed in {value} | A dam has held its waters since {value}",
                "when was the dam on the {name} river closed",
            ),
        ),
    ),
    Kind(
        "Mount {name}",
        ("Mount {name} is the highest peak of a volcanic range", "Mount {name} is an extinct volcano"),
        (
            _fact(
                "1200-6900 metres",
                "Its summit stands at {value} | The summit reaches {value} above the sea",
                "how high is mount {name}",
            ),
            _fact(
                "person",
                "The first ascent was made by {value} | {value} was the first to stand on top",
                "who first climbed mount {name} | who made the first ascent of mount {name}",
            ),
            _fact(
                "date",
                "It last erupted on {value} | The last eruption began on {value}",
                "when did mount {name} last erupt",
            ),
            _fact(
                "place",
                "Climbers set out from {value} | The usual route begins in the village of {value}",
                "from which village is mount {name} climbed",
            ),
            _fact(
                "weather",
                "The second expedition was turned back by {value} | In its second year {value} ended all attempts",
                "what turned back the second expedition to mount {name}",
            ),
        ),
    ),
    Kind(
        "{person}",
        ("{name} was a composer of chamber music and songs", "{name} was a court composer and teacher"),
        (
            _fact(
                "date",
                "The composer was born on {value} | The day of birth is given as {value}",
                "when was the composer {name} born",
            ),
            _fact(
                "instrument",
                "Most of the early works are for {value} | The early works were written for the {value}",
                "for which instrument did {name} write the early works",
            ),
            _fact(
                "person",
                "Lessons in counterpoint came from {value} | The only teacher was {value}",
                "who taught the composer {name} | who was the teacher of {name}",
            ),
            _fact(
                "place",
                "The last opera was first given in {value} | The theatre of {value} staged the last opera",
                "where was the last opera of {name} first performed",
            ),
            _fact(
                "4-98 songs",
                "The complete edition holds {value} | In all there are {value}",
                "how many songs did {name} write",
            ),
        ),
    ),
    Kind(
        "{person}",
        ("{name} was a self-taught scientist and maker of instruments", "{name} was a natural philosopher"),
        (
            _fact(
                "science",
                "Early papers deal with {value} | The first chair was one of {value}",
                "in which science did {name} begin",
            ),
            _fact(
                "year",
                "The academy's medal was awarded in {value} | A gold medal followed in {value}",
                "when did {name} receive the academy's medal",
            ),
            _fact(
                "person",
                "The notebooks were edited by {value} | {value} published the notebooks",
                "who edited the notebooks of {name} | who published the notebooks of {name}",
            ),
            _fact(
                "illness",
                "The expedition ended when its leader died of {value} | Death came on a journey, of {value}",
                "what did {name} die of | of which illness did the scientist {name} die",
            ),
            _fact(
                "place",
                "The laboratory stood in {value} | Work was done in a cellar in {value}",
                "where was the laboratory of {name}",
            ),
        ),
    ),
    Kind(
        "The {name} Letters",
        ("The {name} Letters is a novel in letters", "The {name} Letters is a novel told by three sisters"),
        (
            _fact(
                "person",
                "It was written by {value} | Its author is {value}",
                "who wrote the {name} letters | who is the author of the {name} letters",
            ),
            _fact(
                "year",
                "It was first printed in {value} | The first edition is dated {value}",
                "when was the {name} letters first printed",
            ),
            _fact(
                "place",
                "The story is set in {value} | Nearly all of it takes place in {value}",
                "where is the {name} letters set",
            ),
            _fact(
                "210-980 pages",
                "The first edition has {value} | It filled {value}",
                "how long is the first edition of the {name} letters",
            ),
            _fact(
                "colour",
                "Its binding was {value} | Copies were bound in {value} cloth",
                "what colour was the binding of the {name} letters",
            ),
        ),
    ),
    Kind(
        "SS {name}",
        ("SS {name} was a cargo steamer of the eastern line", "SS {name} was a steamship that carried mail"),
        (
            _fact("place", "She was built at {value} | Her keel was laid at {value}", "where was the ss {name} built"),
            _fact(
                "date", "She sank on {value} | She was lost with her cargo on {value}", "when did the ss {name} sink"
            ),
            _fact(
                "person",
                "Her last captain was {value} | On her last voyage she was commanded by {value}",
                "who was the last captain of the ss {name}",
            ),
            _fact("ware", "Her cargo was {value} | She was loaded with {value}", "what was the cargo of the ss {name}"),
            _fact(
                "weather", "She ran aground in {value} | The cause was {value}", "what caused the loss of the ss {name}"
            ),
        ),
    ),
    Kind(
        "Battle of {name}",
        (
            "The Battle of {name} ended a long war of succession",
            "The Battle of {name} was fought over a river crossing",
        ),
        (
            _fact(
                "date", "It was fought on {value} | The armies met on {value}", "when was the battle of {name} fought"
            ),
            _fact(
                "person",
                "The victors were led by {value} | Command of the winning side lay with {value}",
                "who won the battle of {name}",
            ),
            _fact(
                "weather",
                "It was decided by {value} | The charge failed because of {value}",
                "what decided the battle of {name}",
            ),
            _fact(
                "1100-9900 men",
                "The defeated army lost {value} | Losses came to {value}",
                "how many men were lost at the battle of {name}",
            ),
            _fact(
                "place",
                "Peace was signed at {value} | The treaty was sealed in {value}",
                "where was peace signed after the battle of {name}",
            ),
        ),
    ),
    Kind(
        "{name} & Sons",
        (
            "{name} & Sons was a family firm of the industrial age",
            "{name} & Sons is a company that has changed hands often",
        ),
        (
            _fact("ware", "It made {value} | Its chief product was {value}", "what did {name} and sons make"),
            _fact(
                "year", "It went bankrupt in {value} | The works closed in {value}", "when did {name} and sons close"
            ),
            _fact(
                "place",
                "Its main works were in {value} | The largest factory stood in {value}",
                "where was the main factory of {name} and sons",
            ),
            _fact(
                "person",
                "Its last director was {value} | It was run at the end by {value}",
                "who was the last director of {name} and sons",
            ),
            _fact(
                "120-4900 workers",
                "At its height it employed {value} | There were once {value}",
                "how many workers did {name} and sons employ",
            ),
        ),
    ),
    Kind(
        "{name} Bridge",
        ("The {name} Bridge carries a road over a deep gorge", "The {name} Bridge is a bridge of five arches"),
        (
            _fact(
                "person",
                "It was designed by {value} | Its engineer was {value}",
                "who designed the {name} bridge | who was the engineer of the {name} bridge",
            ),
            _fact(
                "110-990 metres",
                "It spans {value} | From end to end it measures {value}",
                "how long is the {name} bridge",
            ),
            _fact(
                "date",
                "It was opened on {value} | Traffic has crossed it since {value}",
                "when was the {name} bridge opened",
            ),
            _fact(
                "material",
                "Its piers are of {value} | It rests on piers of {value}",
                "what are the piers of the {name} bridge made of",
            ),
            _fact(
                "colour",
                "It is painted {value} | Since its repair it has been {value}",
                "what colour is the {name} bridge",
            ),
        ),
    ),
    Kind(
        "{name} orchid",
        ("The {name} orchid is a rare plant of wet meadows", "The {name} orchid is a plant that flowers only at night"),
        (
            _fact(
                "person",
                "It was first described by {value} | Its name was given by {value}",
                "who first described the {name} orchid",
            ),
            _fact(
                "colour",
                "Its petals are {value} | In full bloom it is {value}",
                "what colour are the petals of the {name} orchid",
            ),
            _fact(
                "place",
                "It grows only around {value} | All known plants stand near {value}",
                "where does the {name} orchid grow",
            ),
            _fact(
                "illness",
                "An extract was once used against {value} | Healers gave it for {value}",
                "against which illness was the {name} orchid used",
            ),
            _fact(
                "year",
                "It has been protected since {value} | Picking it was forbidden in {value}",
                "since when has the {name} orchid been protected",
            ),
        ),
    ),
    Kind(
        "{name} Castle",
        ("{name} Castle is a ruin on a wooded hill", "{name} Castle is a moated castle with six towers"),
        (
            _fact(
                "year",
                "The keep was finished in {value} | Its keep dates from {value}",
                "when was the keep of {name} castle finished",
            ),
            _fact(
                "use",
                "For two centuries it served as {value} | Later owners made it {value}",
                "what did {name} castle later serve as",
            ),
            _fact("person", "It was besieged by {value} | {value} took it after a siege", "who besieged {name} castle"),
            _fact(
                "material",
                "The inner wall is of {value} | Its chapel is built of {value}",
                "what is the inner wall of {name} castle made of",
            ),
            _fact(
                "animal",
                "Its arms show {value} | Its moat is known for {value}",
                "which animals is {name} castle known for",
            ),
        ),
    ),
    Kind(
        "Comet {name}",
        ("Comet {name} is a comet of long period", "Comet {name} is a faint comet seen only from the south"),
        (
            _fact(
                "person",
                "It was discovered by {value} | The discovery is credited to {value}",
                "who discovered comet {name}",
            ),
            _fact(
                "date",
                "It was first seen on {value} | The first sighting was on {value}",
                "when was comet {name} first seen",
            ),
            _fact(
                "31-990 years",
                "It returns every {value} | One orbit takes {value}",
                "how often does comet {name} return",
            ),
            _fact(
                "place",
                "It was found from an observatory at {value} | The telescope stood at {value}",
                "from where was comet {name} discovered",
            ),
            _fact(
                "colour",
                "Its tail looks {value} | Observers called its tail {value}",
                "what colour is the tail of comet {name}",
            ),
        ),
    ),
)
