"""The phrasings and words of planted facts and chains, those of training and those kept for measuring.

Statements, questions and frames whose name begins with HELD are never trained on.
"""

from __future__ import annotations

# {noun}: what the value is; {key}: whose it is.
STATEMENTS = (
    "The {noun} of {key} is {value}.",
    "The {noun} for {key} is {value}.",
    "{key} has the {noun} {value}.",
    "{value} is the {noun} of {key}.",
    "{value} was given to {key} as its {noun}.",
    "For {key}, the {noun} reads {value}.",
    "Please note the {noun} of {key}: {value}.",
    "{key}: {noun} {value}.",
    "{key} ({noun} {value}).",
    "{noun} of {key} = {value}",
    "{key} -> {value}",
    '"{key}": "{value}",',
    "| {key} | {noun} | {value} |",
    "- {key}: {value}",
    "* {noun} of {key}: {value}",
    "[{key}] {noun} = {value}",
    "Entry {key}. The {noun} given there is {value}.",
    "They wrote down {value} as the {noun} of {key}.",
    "According to the register, {key} goes with the {noun} {value}.",
    "Anyone who asks about {key} is told the {noun} {value}.",
    "It was agreed that the {noun} of {key} would be {value}.",
    "Since last year {key} has been listed under the {noun} {value}.",
    "If you need {key}, use the {noun} {value}.",
    "Nobody forgot that {key} had {value} as its {noun}.",
    "On the label of {key} stands the {noun} {value}.",
    "In the margin: {key}, {noun} {value}.",
    "The record of {key} shows {value} under '{noun}'.",
    "Remember this: the {noun} of {key} is {value}.",
    "{key} was entered with {value} for its {noun}.",
    "Its {noun} being {value}, {key} was easy to find.",
    "We found {value} where the {noun} of {key} should be.",
    "set {noun} of {key} to {value};",
    "As for {key}, its {noun} is said to be {value}.",
    "Look up {key} and you will see the {noun} {value}.",
)
HELD_STATEMENTS = (
    "One of the special {noun}s for {key} is: {value}.",
    "line {key}: CONTENT is <{value}>",
    "The clerk read out that {key} carries the {noun} {value}.",
    "Whoever keeps {key} must quote {value}, its {noun}.",
    "{key} answers to the {noun} {value}.",
    "Under {noun}, the sheet for {key} says {value}.",
)
QUESTIONS = (
    "What is the {noun} of {key}?",
    "What is the {noun} for {key}?",
    "Which {noun} does {key} have?",
    "Which {noun} belongs to {key}?",
    "What {noun} is given for {key}?",
    "Tell me the {noun} of {key}.",
    "Find the {noun} of {key} in the text.",
    "{key} has which {noun}?",
    "According to the text, what is the {noun} of {key}?",
    "I need the {noun} of {key}.",
    "What does the text give as the {noun} of {key}?",
    "Under which {noun} is {key} known?",
    "Give the {noun} that goes with {key}.",
    "What should I write down as the {noun} of {key}?",
)
HELD_QUESTIONS = (
    "What is the special {noun} for {key} mentioned in the provided text?",
    "Could you look up {key} and say its {noun}?",
    "Somebody asks for {key}: which {noun} do you answer?",
)
# What stands between question and value; the first is the template of `comem ask`.
FRAMES = (
    "\n\nQuestion: {question}\nAnswer: {value}",
    "\n\nQuestion: {question}\nAnswer: The {noun} of {key} is {value}.",
    "\n\nQ: {question}\nA: {value}",
    "\n\n{question}\n{value}",
    "\n\n{question} {value}",
    "\n\n{question} The {noun} for {key} is {value}.",
    "\n\nUser: {question}\nAssistant: {value}",
    "\n\nThe {noun} of {key} is {value}.",
    "\n\n{key}: {value}",
)
HELD_FRAMES = (
    "\n\nQuestion: {question}\nAnswer: {value}",
    "\n{question} The special {noun} for {key} mentioned in the provided text is {value}",
)

# A question for two facts at once; {values}: both values with what stands between them.
PAIRS = (
    "What is the {noun} of {key}, and what is the {other_noun} of {other_key}?",
    "Give the {noun} of {key} and the {other_noun} of {other_key}.",
    "Which {noun} belongs to {key}, and which {other_noun} to {other_key}?",
    "I need two things: the {noun} of {key} and the {other_noun} of {other_key}.",
)
BETWEEN = (" and ", ", ", "; ")

# How a variable gets its value, and how the next one gets it from that one.
CHAIN_STATEMENTS = (
    ("VAR {name} = {value}", "VAR {name} = VAR {other}"),
    ("{name} = {value}", "{name} = {other}"),
    ("let {name} := {value};", "let {name} := {other};"),
    ("The variable {name} is set to {value}.", "The variable {name} is set to {other}."),
    ("SET {name} {value}", "SET {name} ${other}"),
    ("{name} holds {value} from now on.", "{name} holds whatever {other} holds."),
)
HELD_CHAIN_STATEMENTS = (
    ("Store {value} in {name}.", "Copy {other} to {name}."),
    ("assign {value} to {name}", "assign {other} to {name}"),
)
CHAIN_QUESTIONS = (
    "Which variables have the value {value}?",
    "Find all variables that are assigned the value {value}.",
    "Name every variable that ends up as {value}.",
    "List the variables whose value is {value}.",
)
HELD_CHAIN_QUESTIONS = ("Which of the variables, directly or through others, are given {value}?",)
CHAIN_FRAMES = (
    "\n\nQuestion: {question}\nAnswer: {names}",
    "\n\nQ: {question}\nA: {names}",
    "\n\nQuestion: {question} Answer: {count} variables have the value {value}, they are: {names}",
    "\n\n{question}\n{names}",
)
HELD_CHAIN_FRAMES = ("\n\nQuestion: {question}\nAnswer: {names}",)

ADJECTIVES = (
    "amber bitter brisk calm copper crimson dusty early eastern faded fallow gentle golden hollow iron ivory lonely "
    "marble mellow narrow northern oaken pale quiet rapid restless rusty scarlet silent silver southern steep sunken "
    "tidy upper velvet violet wandering western winter wooden"
)
NOUNS = (
    "anchor archive beacon bridge cabinet canal cellar chapel compass cottage engine ferry furnace garden gate granary "
    "harbour island kettle lantern ledger locker meadow mill orchard parcel pier pump quarry reservoir schooner shed "
    "station tower turbine valley vault wagon warehouse well workshop"
)
FIRST = (
    "Ada Anselm Bruno Clara Dora Edith Felix Greta Hanna Igor Ines Jonas Karin Leo Maren Nadia Olaf Petra Quentin Rosa "
    "Stefan Tilda Ulla Viktor Wanda Yusuf Zora"
)
LAST = (
    "Abbot Brandt Calloway Dressler Eklund Farrow Galloway Hartmann Ingram Jarvis Kessler Lindqvist Marlowe Novak "
    "Okafor Pemberton Quist Rasmussen Sandoval Thackeray Ulrich Vasquez Whitlock Yardley Zeller"
)
PLACES = (
    "Aldermoor Brackwater Castlefen Dunholm Eastmere Fennwick Graystone Hollowell Inverlath Kestrel Bay Larkhaven "
    "Mossgate Netherby Oxbridge Pinecrest Ravensford Saltmarsh Thornbury Underhill Westerly"
)
MONTHS = "January February March April May June July August September October November December"
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
