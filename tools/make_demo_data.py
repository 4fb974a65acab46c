"""Writes the demo workloads `choices` and `questions` from the word tables below; the other two are written by hand.

It is deterministic: run `python tools/make_demo_data.py`, and the files in the package are as they were.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "src" / "noisescope" / "measure" / "demo_data"
Line = dict[str, object]

# Question opening | right ending | wrong endings.
KNOWLEDGE = """
The capital of France is | Paris | Madrid, Rome, Berlin
The capital of Japan is | Tokyo | Beijing, Seoul, Bangkok
The capital of Italy is | Rome | Paris, Athens, Vienna
The capital of Egypt is | Cairo | Tunis, Nairobi, Lagos
The capital of Russia is | Moscow | Warsaw, Kiev, Prague
The Earth goes around the | Sun | Moon, Mars, clouds
A year on Earth has 365 | days | hours, weeks, months
Water freezes and turns into | ice | sand, smoke, iron
Water boils and turns into | steam | stone, wood, sugar
Bees collect nectar and make | honey | milk, cheese, bread
Cows are kept on farms to give | milk | honey, silk, coal
Spiders catch insects in their | webs | shells, nests of snow, wallets
Fish breathe under water with their | gills | wings, hooves, feathers
Birds fly with their | wings | gills, horns, roots
The heart pumps | blood | sand, air, honey
We hear sounds with our | ears | knees, hair, elbows
We see things with our | eyes | toes, knees, teeth
Plants need water, air and | sunlight | gasoline, pepper, paper
The red planet is called | Mars | Venus, Jupiter, London
The largest ocean on Earth is the | Pacific Ocean | Atlantic Ocean, Black Sea, Red Sea
At night we can see the moon and the | stars | rainbow, sunrise, lunch
The color of fresh snow is | white | green, black, purple
The color of grass is | green | red, white, pink
Bananas, when they are ripe, are | yellow | blue, black, gray
A triangle has three | sides | wheels, legs, colors
A bicycle has two | wheels | engines, sails, wings
Penguins live where it is very | cold | hot, dry, noisy
Camels live in the | desert | ocean, forest canopy, arctic
A dentist takes care of your | teeth | garden, roof, shoes
A baker makes | bread | shoes, maps, laws
A library is a place with many | books | cows, engines, rivers
In winter people wear warm | coats | swimsuits, sandals, wheels
When it rains, people open an | umbrella | oven, atlas, eggshell
To cut paper you can use a pair of | scissors | glasses, socks, pants
To tell the time you look at a | clock | spoon, pillow, carpet
You keep food cold in a | refrigerator | bathtub, mailbox, bookcase
Shakespeare wrote plays and | poems | software, sermons on chess, recipes
A person who flies an airplane is called a | pilot | farmer, barber, tailor
Doctors and nurses work in a | hospital | mine, stadium, lighthouse
Ships sail on the | sea | roof, road, wall
Bread is made from | flour | glass, rubber, paint
Cheese is made from | milk | sand, paper, coal
Wool comes from | sheep | frogs, fish, trees
The season after winter is | spring | night, Monday, noon
The sun rises in the | east | evening, cellar, drawer
"""

# Subject | right verb phrase | wrong verb phrase.
GRAMMAR = """
The dogs in the garden | are barking | is barking
The dog behind the trees | is barking | are barking
My sister | has a new job | have a new job
My sisters | have a new house | has a new house
The keys on the table | are mine | is mine
The box of chocolates | was empty | were empty
Yesterday we | went to the market | goes to the market
Tomorrow she | will visit her aunt | visited her aunt
He has already | eaten his lunch | eat his lunch
They were | singing a song | sang a song
I am | waiting for the bus | waits for the bus
Each of the boys | has a ticket | have a ticket
The children | were playing outside | was playing outside
The child | was playing outside | were playing outside
She can | swim very well | swims very well
He does not | like onions | likes onions
The books on that shelf | belong to my father | belongs to my father
The woman with the two cats | lives next door | live next door
We have never | been to Spain | be to Spain
If I were you, I | would call her | will called her
The old man | walks slowly | walk slowly
The old men | walk slowly | walks slowly
There are three | apples in the bowl | apple in the bowl
There is one | apple in the bowl | apples in the bowl
This house is bigger | than that one | then that one
She is the tallest | girl in the class | girl than the class
He gave the letter | to his mother | at his mother
They arrived | at the station | to the station
She is interested | in history | on history
He is afraid | of spiders | from spiders
I have lived here | since 2010 | for 2010
The train leaves | at noon | in noon
My birthday is | in June | at June
The cat hurt | itself | themselves
The boys enjoyed | themselves | himself
Mary washed | her hands | his hands
Yesterday the weather | was lovely | is lovely tomorrow
Two of the windows | were broken | was broken
Neither answer | is correct | are correct
The news | is good today | are good today
"""

OPPOSITES = """
hot cold | big small | up down | open closed | fast slow | happy sad | day night | black white | old new | rich poor
wet dry | full empty | hard soft | light dark | early late | tall short | left right | true false | win lose | love hate
strong weak | heavy light | near far | high low | good bad | young old | first last | inside outside | clean dirty
thick thin | loud quiet | cheap expensive | easy difficult | front back | begin end | buy sell | push pull | give take
asleep awake | sweet bitter
"""

SEQUENCES = """
Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday
January, February, March, April, May, June, July, August, September, October, November, December
one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve
first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth
A, B, C, D, E, F, G, H, I, J, K, L, M
2, 4, 6, 8, 10, 12, 14, 16, 18, 20
5, 10, 15, 20, 25, 30, 35, 40, 45, 50
10, 20, 30, 40, 50, 60, 70, 80, 90, 100
10, 9, 8, 7, 6, 5, 4, 3, 2, 1
"""

CATEGORIES = """
fruit: apple, banana, pear, cherry, mango, peach
bird: eagle, sparrow, owl, parrot, robin, pigeon
tool: hammer, screwdriver, saw, wrench, chisel
metal: iron, copper, silver, gold, aluminum
vehicle: truck, bus, motorcycle, car, van
flower: rose, tulip, daisy, lily, orchid
sport: tennis, football, hockey, basketball, golf
country: Canada, Brazil, Germany, India, Kenya
"""

COPIED = """
banana, window, tiger, silver, garden, pencil, rocket, violin, carpet, lemon, castle, button, dragon, pillow, hammer
candle, bridge, monkey, ticket, turtle, mirror, basket, jacket, kettle, ladder, museum, needle, orange, parrot, saddle
"""

# Opening | ending that makes sense | endings that do not.
SENTENCES = """
She poured the hot coffee into her | cup | shoe, pillow, curtain
He unlocked the front door with his | key | sandwich, pillow, sock
The baby started to cry because she was | hungry | triangular, wooden, electric
The plane landed at the | airport | bakery, bathtub, piano
He put on his shoes and tied the | laces | candles, clouds, spoons
After the long hike we were all very | tired | square, printed, frozen solid
The cat chased the | mouse | ceiling, alphabet, thunder
She wrote a letter and put it in an | envelope | orchestra, avalanche, oven
He brushed his teeth and went to | bed | lightning, gravity, the menu
The farmer drove his tractor across the | field | ceiling, spoon, violin
They lit the candles on the birthday | cake | sock, traffic, sidewalk
The teacher wrote the answer on the | board | soup, wind, lunch
She was cold, so she put on a | sweater | sandwich, hammer, lake
It was dark, so he turned on the | light | bread, river, grass
The students opened their books and began to | read | melt, bark, rust
The soup needed more | salt | shoes, pencils, carpet
He could not find his glasses, so he could not | see | boil, rust, bloom
The children built a castle out of | sand | thunder, silence, Tuesday
The bus was late, so I had to | wait | melt, bloom, hatch
She watered the plants in the | garden | engine, wallet, calendar
The chef cut the onions with a sharp | knife | pillow, balloon, scarf
They watched a movie on the | television | toothbrush, ladder, spoon
He bought two tickets for the | concert | elbow, oxygen, shadow
The dog wagged its | tail | radio, bicycle, fork
The bird built a nest in the | tree | toaster, sentence, soup
We went to the beach to swim in the | sea | library, drawer, bread
The doctor asked the patient to open his | mouth | bridge, harvest, weather
The judge listened to the | witness | carrot, staircase, teaspoon
The ship sank to the bottom of the | ocean | envelope, ceiling, sandwich
He took a picture with his | camera | bread, blanket, broom
The wind blew the leaves off the | trees | spoons, letters, stairs
She played a song on the | piano | sandwich, carpet, ladder
The firemen put out the | fire | homework, alphabet, breakfast
He paid for the groceries with his credit | card | cloud, fork, horse
The snow melted when the weather got | warmer | shorter, greener, louder
The runner crossed the finish | line | milk, tooth, cloud
They planted seeds and waited for them to | grow | drive, sing, type
She set the alarm clock to wake up | early | blue, sideways, wooden
The mechanic repaired the | car | poem, sunset, rumor
He was thirsty, so he drank a glass of | water | gravel, paper, wool
"""

PASTS = """
walk walked | play played | go went | see saw | eat ate | run ran | write wrote | take took | give gave | come came
sing sang | buy bought | think thought | find found | make made | know knew | speak spoke | break broke | drive drove
swim swam
"""

NAMES = "Tom, Anna, Ben, Lucy, Sam, Emma, Jack, Mary, Paul, Kate, Dan, Rose, Peter, Jane"
THINGS = "apples, books, dogs, coins, hats, stamps, pens, chairs, eggs, cups, shirts, keys, lamps, roses"
COUNTS = """
How many days are there in a week? | 7
How many months are there in a year? | 12
How many hours are there in a day? | 24
How many seconds are there in a minute? | 60
How many legs does a dog have? | 4
How many legs does a spider have? | 8
How many wheels does a bicycle have? | 2
How many sides does a triangle have? | 3
How many sides does a square have? | 4
How many letters are in the English alphabet? | 26
How many eyes does a person have? | 2
How many fingers are on one hand? | 5
How many days are there in a leap year? | 366
How many years are there in a century? | 100
"""


def cells(table: str) -> list[str]:
    """The entries of a table whose entries stand between bars."""
    return [entry.strip() for line in table.strip().splitlines() for entry in line.split("|")]


def words(line: str) -> list[str]:
    """The words of a list with commas, over one line or several."""
    return [word.strip() for word in line.strip().replace("\n", ",").split(",")]


def choice(draw: random.Random, kind: str, prompt: str, right: str, wrong: Iterable[str]) -> Line:
    """A line whose right choice stands at a drawn place."""
    choices = [right, *wrong]
    draw.shuffle(choices)
    return {"prompt": prompt, "choices": choices, "answer": choices.index(right), "kind": kind}


def others(draw: random.Random, pool: Sequence[str], right: str, count: int = 3) -> list[str]:
    """Wrong choices drawn from the right ones of other lines."""
    return draw.sample([word for word in pool if word != right], count)


def hand_written(draw: random.Random) -> Iterator[Line]:
    """Everyday knowledge, the sensible end of a sentence, and the grammatical one."""
    for kind, table in (("knowledge", KNOWLEDGE), ("sentence", SENTENCES), ("grammar", GRAMMAR)):
        for row in table.strip().splitlines():
            prompt, right, wrong = (cell.strip() for cell in row.split("|"))
            yield choice(draw, kind, prompt, right, words(wrong))


def opposites(draw: random.Random) -> Iterator[Line]:
    """The opposite of a word, among those of other words."""
    pairs = [entry.split() for entry in cells(OPPOSITES)]
    pool = [second for _, second in pairs]
    for first, second in pairs:
        wrong = [first, *others(draw, [word for word in pool if word != first], second)]
        yield choice(draw, "opposite", f"The opposite of {first} is", second, wrong)


def sequences(draw: random.Random) -> Iterator[Line]:
    """What comes next in a well-known order."""
    for row in SEQUENCES.strip().splitlines():
        members = words(row)
        for last in draw.sample(range(4, len(members)), min(5, len(members) - 4)):
            near = [members[i] for i in (last - 4, last - 2, last - 1, last + 1) if i < len(members)]
            wrong = draw.sample(near, 3)
            yield choice(draw, "sequence", ", ".join(members[last - 4 : last]) + ",", members[last], wrong)


def categories(draw: random.Random) -> Iterator[Line]:
    """What kind of thing something is."""
    table = {name: words(members) for name, members in (row.split(":") for row in CATEGORIES.strip().splitlines())}
    for name, members in table.items():
        for member in members:
            prompt = f"The word {member} is the name of a"
            yield choice(draw, "category", prompt, name, others(draw, list(table), name, 5))


def copies(draw: random.Random) -> Iterator[Line]:
    """The second word of a list that was just given."""
    pool = words(COPIED)
    for word in pool:
        one, two, four, *strange = others(draw, pool, word, 5)
        prompt = f"The words are: {one}, {two}, {word}, {four}. Again, the words are: {one}, {two},"
        yield choice(draw, "copy", prompt, word, [one, four, *strange])


def arithmetic(draw: random.Random) -> Iterator[Line]:
    """Sums and differences of two digits, among near misses."""
    pairs = draw.sample([(a, b) for a in range(1, 10) for b in range(1, 10) if a != b], 60)
    for i, (a, b) in enumerate(pairs):
        prompt, right = (f"1 + 1 = 2, 2 + 3 = 5, {a} + {b} =", a + b) if i < 30 else (f"5 - 2 = 3, {a + b} - {b} =", a)
        wrong = draw.sample([n for n in range(max(0, right - 4), right + 5) if n != right], 3)
        yield choice(draw, "sum" if i < 30 else "difference", prompt, str(right), map(str, wrong))


def pasts(draw: random.Random) -> Iterator[Line]:
    """The past tense of a verb, among the verb itself and other past tenses."""
    pairs = [entry.split() for entry in cells(PASTS)]
    for first, second in pairs:
        wrong = [first, *others(draw, [past for _, past in pairs], second, 2)]
        prompt = f"Today I help, yesterday I helped. Today I {first}, yesterday I"
        yield choice(draw, "past tense", prompt, second, wrong)


def questions(draw: random.Random) -> Iterator[Line]:
    """Questions whose answer is a number, which the model words itself."""
    for row in COUNTS.strip().splitlines():
        question, answer = (cell.strip() for cell in row.split("|"))
        yield {"question": question, "answer": answer, "kind": "everyday number"}
    for number in draw.sample(range(3, 1000), 14):
        yield {"question": f"Repeat this number: {number}", "answer": str(number), "kind": "repeat"}
    for name, thing in zip(words(NAMES), words(THINGS), strict=True):
        count = draw.randint(3, 40)
        question = f"{name} has {count} {thing}. How many {thing} does {name} have?"
        yield {"question": question, "answer": str(count), "kind": "recall"}
    for a, b in draw.sample([(a, b) for a in range(1, 7) for b in range(1, 5)], 14):
        yield {"question": f"What is {a} + {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b}", "kind": "sum"}


MAKERS = (hand_written, opposites, sequences, categories, copies, arithmetic, pasts)


def write(name: str, lines: Sequence[Line]) -> None:
    """Write one file, an item a line."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (FOLDER / f"{name}.jsonl").write_text(text, encoding="utf-8")


def main() -> None:
    """Write both files. The kinds are mixed, so that the first so many items hold all of them."""
    draw = random.Random(20240726)  # noqa: S311 - it has to be repeatable, not secret
    lines = [line for maker in MAKERS for line in maker(draw)]
    draw.shuffle(lines)
    write("choices", lines)
    asked = list(questions(draw))
    draw.shuffle(asked)
    write("questions", asked)


if __name__ == "__main__":
    main()
