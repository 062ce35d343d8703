"""The words of the tasks, by what they are. Lists only: `wordings` has the sentences."""


def list_of(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def _pairs(text: str) -> dict[str, str]:
    words = list_of(text)
    return dict(zip(words[::2], words[1::2], strict=True))


WOMEN = list_of(
    "Mary Anna Sarah Lucy Emma Kate Laura Helen Alice Clara Diana Ellen Fiona Grace Hannah Irene Jane "
    "Karen Lily Maria Nora Olga Paula Rachel Sophie Tina Vera Wendy Amy Beth Carol Donna Eva Flora Gloria "
    "Heidi Julia Linda Lisa Megan Nancy Pamela Ruth Rita Susan Sylvia Teresa Zoe"
)
MEN = list_of(
    "John Tom Paul Mark Peter James David Simon Adam Ben Daniel Edward Frank George Henry Ian Jack Kevin "
    "Leo Martin Nick Oliver Patrick Robert Sam Thomas Victor Walter Aaron Brian Carl Dennis Eric Fred "
    "Gary Hugo Jason Kurt Louis Max Neil Oscar Philip Ryan Scott Steven Tony William"
)
NAMES = [name for both in zip(WOMEN, MEN, strict=True) for name in both]

PLACES = list_of(
    "store garden park school station market library museum river beach church hospital office kitchen "
    "farm harbour castle forest bridge theatre bakery hotel gym bank cafe lake village tower square field "
    "palace temple zoo mill shop prison stadium studio clinic cottage"
)

# Things that can be given. None starts with a vowel, so that "a" is always right.
OBJECTS = list_of(
    "drink ring book cup ball key letter flower box bag hat coat map lamp pen bottle basket card coin "
    "cake gift kite doll drum flute guitar mirror necklace pillow blanket plate spoon fork rope shirt "
    "scarf glove stamp ticket toy watch whistle candle clock chair radio bone snack melon sandwich"
)
# What one does with which things: plain sentences have a language that can be right or wrong.
VERBS = {
    "found": OBJECTS,
    "lost": OBJECTS,
    "bought": OBJECTS,
    "sold": OBJECTS,
    "wore": list_of("ring hat coat necklace shirt scarf glove watch"),
    "washed": list_of("cup hat coat bottle plate spoon fork shirt scarf glove blanket"),
    "ate": list_of("cake snack melon sandwich"),
    "read": list_of("book letter map card ticket"),
    "wrote": list_of("book letter card"),
    "played": list_of("drum flute guitar whistle radio"),
    "lit": list_of("lamp candle"),
    "filled": list_of("cup box bag bottle basket plate"),
    "broke": list_of("cup bottle plate mirror clock chair radio toy lamp"),
    "threw": list_of("ball kite doll rope toy bone pillow"),
    "hid": list_of("ring key letter coin gift ticket stamp"),
}
GIFT_VERBS = list_of("gave handed passed offered sent showed")
FEELINGS = list_of("happy sad tired hungry angry proud afraid bored")

_OPPOSITES = _pairs(
    "large small hot cold up down day night black white good bad fast slow high low old young rich poor "
    "hard soft light dark long short full empty early late open closed wet dry clean dirty sweet bitter "
    "strong weak thick thin wide narrow deep shallow loud quiet sharp dull near far left right north "
    "south east west first last true false safe dangerous rough smooth brave timid king queen man woman "
    "boy girl brother sister friend enemy love hate buy sell push pull win lose inside outside summer "
    "winter war peace begin end give take laugh cry question answer"
)
_PLURALS = {thing: thing + "s" for thing in OBJECTS[:40] if thing != "box"} | _pairs(
    "mouse mice goose geese man men woman women foot feet tooth teeth wolf wolves leaf leaves knife "
    "knives ox oxen dog dogs cat cats horse horses cow cows pig pigs frog frogs king kings queen queens "
    "day days night nights apple apples rose roses plum plums box boxes watch watches sandwich sandwiches "
    "boy boys girl girls"
)
_CAPITALS = _pairs(
    "France Paris Germany Berlin Italy Rome Spain Madrid England London Russia Moscow China Beijing Japan "
    "Tokyo Egypt Cairo Greece Athens Poland Warsaw Austria Vienna Portugal Lisbon Ireland Dublin Norway "
    "Oslo Sweden Stockholm Denmark Copenhagen Finland Helsinki Hungary Budapest Turkey Ankara Iran Tehran "
    "Iraq Baghdad India Delhi Thailand Bangkok Vietnam Hanoi Cuba Havana Peru Lima Chile Santiago Kenya "
    "Nairobi Ghana Accra Canada Ottawa Scotland Edinburgh Belgium Brussels Ukraine Kyiv Bulgaria Sofia "
    "Romania Bucharest Syria Damascus Lebanon Beirut Cyprus Nicosia Latvia Riga"
)
_COLOURS = _pairs(
    "grass green blood red snow white coal black sky blue sun yellow milk white tomato red banana yellow "
    "carrot orange plum purple pig pink chocolate brown lemon yellow leaf green ash grey frog green raven "
    "black cherry red ocean blue salt white elephant grey pumpkin orange swan white rose red apple red "
    "wolf grey mouse grey cat black horse brown cow brown goose white tooth white night black day blue"
)
# relation -> word -> the related word. Many words have two relations, so the relation word must be read.
RELATIONS: dict[str, dict[str, str]] = {
    "opposite": _OPPOSITES | {b: a for a, b in _OPPOSITES.items()},
    "plural": _PLURALS,
    "capital": _CAPITALS,
    "colour": _COLOURS,
}
COUNTRIES = list(_CAPITALS)
ANIMALS = list_of("dog cat horse cow pig frog wolf mouse goose")
SIZES = list_of("large small old young fast slow clean dirty quiet loud strong weak")

WEATHER = list_of("hot cold wet dry long short quiet dark")

NUMBERS = [f"{n:02d}" for n in range(100)]
CENTURIES = NUMBERS[11:19]
EVENTS = list_of(
    "war reign siege strike drought famine festival journey voyage plague truce treaty expedition feud "
    "empire dynasty trial project tour campaign rebellion crisis conflict marriage debate exhibition "
    "revolt blockade"
)

FUNCTIONS = list_of(
    "port fetch parse render merge split build check update convert encode decode resize filter group "
    "export import compile solve trace"
)
ARGUMENTS = list_of(
    "load size files path mode name value index count item data node root depth width height start stop "
    "step limit offset label target source buffer cache token query filename host timeout retries seed "
    "alpha beta gamma scale shift mask axis dtype shape stream callback options flags prefix suffix level "
    "rate"
)
DESCRIPTIONS = list_of(
    "oil column piece crime population unit number list total maximum default optional current valid "
    "output input text table record section address region signal sample series pattern volume process "
    "result weight"
)

PUNCTUATION = ["<|endoftext|>", ".", ",", ":", "?", '"', '"""', "(", ")", ":param"]
