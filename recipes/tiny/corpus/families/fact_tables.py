"""Tables of facts: countries, animals, elements, books, inventions, opposites."""

from collections.abc import Mapping

from recipes.tiny.corpus.families.pools import words


def _rows(names: str, table: str) -> tuple[Mapping[str, str], ...]:
    """Parse lines `a | b | c` into rows keyed by the column names."""
    keys = names.split()
    lines = (line.split("|") for line in table.strip().splitlines())
    return tuple(dict(zip(keys, (cell.strip() for cell in cells), strict=True)) for cells in lines)


COUNTRIES = _rows(
    "country capital continent language currency",
    """
    France | Paris | Europe | French | euro
    Germany | Berlin | Europe | German | euro
    Italy | Rome | Europe | Italian | euro
    Spain | Madrid | Europe | Spanish | euro
    Portugal | Lisbon | Europe | Portuguese | euro
    Austria | Vienna | Europe | German | euro
    Greece | Athens | Europe | Greek | euro
    Poland | Warsaw | Europe | Polish | zloty
    Sweden | Stockholm | Europe | Swedish | krona
    Norway | Oslo | Europe | Norwegian | krone
    Denmark | Copenhagen | Europe | Danish | krone
    Hungary | Budapest | Europe | Hungarian | forint
    Iceland | Reykjavik | Europe | Icelandic | krona
    Finland | Helsinki | Europe | Finnish | euro
    Japan | Tokyo | Asia | Japanese | yen
    China | Beijing | Asia | Chinese | yuan
    Thailand | Bangkok | Asia | Thai | baht
    Vietnam | Hanoi | Asia | Vietnamese | dong
    South Korea | Seoul | Asia | Korean | won
    Iran | Tehran | Asia | Persian | rial
    Egypt | Cairo | Africa | Arabic | pound
    Morocco | Rabat | Africa | Arabic | dirham
    Ghana | Accra | Africa | English | cedi
    Brazil | Brasilia | South America | Portuguese | real
    Argentina | Buenos Aires | South America | Spanish | peso
    Chile | Santiago | South America | Spanish | peso
    Peru | Lima | South America | Spanish | sol
    Cuba | Havana | North America | Spanish | peso
    Mexico | Mexico City | North America | Spanish | peso
    Australia | Canberra | Oceania | English | dollar
    """,
)
ANIMALS = _rows(
    "animal young sound legs",
    """
    dog | puppy | barks | four
    cat | kitten | meows | four
    cow | calf | moos | four
    horse | foal | neighs | four
    sheep | lamb | bleats | four
    lion | cub | roars | four
    pig | piglet | grunts | four
    duck | duckling | quacks | two
    hen | chick | clucks | two
    owl | owlet | hoots | two
    """,
)
ELEMENTS = _rows(
    "element symbol number",
    """
    hydrogen | H | 1
    helium | He | 2
    carbon | C | 6
    nitrogen | N | 7
    oxygen | O | 8
    neon | Ne | 10
    sodium | Na | 11
    sulfur | S | 16
    calcium | Ca | 20
    iron | Fe | 26
    copper | Cu | 29
    zinc | Zn | 30
    silver | Ag | 47
    tin | Sn | 50
    gold | Au | 79
    lead | Pb | 82
    """,
)
BOOKS = _rows(
    "book author country",
    """
    Hamlet | William Shakespeare | England
    Macbeth | William Shakespeare | England
    Oliver Twist | Charles Dickens | England
    Emma | Jane Austen | England
    Frankenstein | Mary Shelley | England
    Dracula | Bram Stoker | Ireland
    Ulysses | James Joyce | Ireland
    Faust | Johann Wolfgang von Goethe | Germany
    War and Peace | Leo Tolstoy | Russia
    Moby-Dick | Herman Melville | America
    Don Quixote | Miguel de Cervantes | Spain
    Les Miserables | Victor Hugo | France
    The Metamorphosis | Franz Kafka | Prague
    The Odyssey | Homer | Greece
    """,
)
INVENTIONS = _rows(
    "thing person country",
    """
    the telephone | Alexander Graham Bell | Scotland
    dynamite | Alfred Nobel | Sweden
    the diesel engine | Rudolf Diesel | Germany
    the World Wide Web | Tim Berners-Lee | England
    the saxophone | Adolphe Sax | Belgium
    the battery | Alessandro Volta | Italy
    the Braille alphabet | Louis Braille | France
    the lightning rod | Benjamin Franklin | America
    """,
)
OPPOSITES = _rows(
    "word other",
    """
    hot | cold
    big | small
    old | new
    fast | slow
    high | low
    long | short
    light | dark
    happy | sad
    rich | poor
    full | empty
    early | late
    hard | soft
    strong | weak
    clean | dirty
    wet | dry
    open | closed
    left | right
    loud | quiet
    near | far
    thick | thin
    """,
)
PLANETS = words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune")
ORDINALS = words(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
)
