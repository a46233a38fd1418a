"""Random values; some are held out for the evaluation."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import TypeVar

from guideway_demo_model.training.templates import Split

__all__ = ["COLORS", "CURRENCIES", "JOBS", "Values", "is_held_out"]

T = TypeVar("T")


def _words(text: str) -> list[str]:
    return text.split()


SYLLABLES = _words(
    "an ar bel bo ca cor da del el en fa fer ga gor ha hel in ja jo ka kel la lin lo ma mar mi na nor o pa per ra ri "
    "ro sa sel ta ter to u va vi wen xa ya zo zel"
)
ONSETS = _words("b c d f g h j k l m n p r s t v w y z sh th ch br st tr cl gr")
VOWELS = _words("a e i o u a e i o ee ou ai")
CODAS = ("", "", "n", "r", "l", "s", "t", "m", "d", "ck", "y", "nd", "rt", "st")
FIRST_NAMES = _words(
    "Alice Bob Carol David Emma Frank Grace Henry Irene Jack Karen Liam Maria Nina Oscar Paul Quinn Rosa Sam Tina Uma "
    "Victor Wendy Xavier Yara Zoe José Zoë André Lucía Björn Chloé Renée Søren Anna Peter John Jane Mary James Linda "
    "Robert Susan Michael Sarah Thomas Laura Daniel Julia Kevin Amy Brian Olga Ivan Mei Wei Hiro Yuki Fatima Omar Ali "
    "Priya Raj Aisha Noah Mia Lucas Ella Ethan Ava"
)
LAST_NAMES = _words(
    "Smith Johnson Lee Garcia Müller Silva Chen Patel Kim Nguyen Brown Davis Wilson Moore Taylor Anderson Thomas "
    "Martin White Harris Clark Lewis Walker Hall Allen Young King Wright Scott Green Baker Adams Nelson Hill Campbell "
    "Mitchell Roberts Carter Phillips Evans Turner Torres Parker Collins Edwards Stewart Flores Morris Murphy Cook "
    "Rogers Morgan Cooper Reed Bailey Bell Gomez Kelly Howard Ward Cox Diaz Wood Watson Brooks Bennett Gray Doe "
    "O'Brien Núñez"
)
CITIES = _words(
    "Paris London Berlin Madrid Rome Tokyo Oslo Vienna Prague Lisbon Dublin Boston Chicago Seattle Denver Austin Miami "
    "Toronto Montreal Sydney Melbourne Delhi Mumbai Seoul Beijing Shanghai Cairo Nairobi Lagos Lima Bogotá Zürich "
    "Geneva Munich Hamburg Lyon Nice Porto Athens Warsaw Helsinki"
)
CITY_ENDINGS = ("", "", "ville", " City", "burg")
COMPANY_ENDINGS = ("Inc", "Ltd", "Corp", "LLC", "Group", "Systems", "Foods", "Tools", "Media", "& Sons")
JOBS = _words(
    "engineer teacher doctor nurse lawyer chef pilot designer accountant plumber writer artist manager analyst "
    "scientist farmer baker driver editor architect dentist electrician librarian mechanic photographer"
)
ITEMS = _words(
    "laptop mouse keyboard monitor chair desk lamp phone tablet cable printer camera headset backpack notebook pen mug "
    "bottle jacket shirt shoes hat gloves scarf umbrella toaster kettle blender bike helmet tent rope ladder drill "
    "hammer saw"
)
ADJECTIVES = _words(
    "red blue green black white small large wooden steel wireless portable vintage compact heavy light smart"
)
COLORS = _words("red blue green black white yellow orange purple pink brown gray silver gold")
NOUNS = _words(
    "apple river stone cloud forest garden window bridge market engine signal planet rocket mirror castle dragon "
    "pepper copper velvet marble anchor beacon carbon ember falcon harbor island jungle kernel lantern meadow nectar "
    "ocean pebble quartz raven saddle temple valley willow"
)
MONTHS = _words("January February March April May June July August September October November December")
CURRENCIES = {
    "USD": ("dollars", "USD", "US dollars"),
    "EUR": ("euros", "EUR"),
    "GBP": ("pounds", "GBP"),
    "JPY": ("yen", "JPY"),
}
"""The words and codes by which a text names a currency."""

HELD_OUT_SHARE = 8
"""One of this many values is held out."""


CROWD_TRIES = 50
"""Draws after which a value of another class is accepted: a small range has few whole numbers."""


def is_held_out(value: object) -> bool:
    """Return whether only the evaluation may use `value`, by the CRC-32 of its text."""
    return _value_class(value) == 0


def _value_class(value: object) -> int:
    return zlib.crc32(str(value).encode()) % HELD_OUT_SHARE


class Values:
    """Draws values of one split. Closed lists (jobs, colors, currencies, room types, units) are not split."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self._rng = rng
        self._held_out = split == "test"
        self._crowd: int | None = None

    def crowd(self, crowded: bool) -> None:
        """From now on, draw training values of one class out of `HELD_OUT_SHARE`, or of all classes.

        The held-out values are such a class. With few values, two facts of a text often have the same word or number.
        """
        self._crowd = self._rng.randrange(1, HELD_OUT_SHARE) if crowded else None

    def _draw(self, make: Callable[[], T]) -> T:
        for attempt in range(1000):
            value = make()
            found = _value_class(value)
            if (found == 0) == self._held_out and (self._crowd in (None, found) or attempt >= CROWD_TRIES):
                return value
        raise RuntimeError(f"no {'held-out' if self._held_out else 'training'} value found, the last was {value!r}")

    def _invent(self) -> str:
        """Invent a word from few recurring syllables or from many, so that its syllables do not show where a value
        is."""
        r = self._rng
        if r.random() < 0.4:
            return "".join(r.choice(SYLLABLES) for _ in range(r.randint(2, 3)))
        return "".join(r.choice(ONSETS) + r.choice(VOWELS) + r.choice(CODAS) for _ in range(r.choice([1, 2, 2, 3])))

    def _proper(self, known: list[str], share: float) -> str:
        """Return one of `known` in `share` of all draws, else an invented name."""
        return self._rng.choice(known) if self._rng.random() < share else self._invent().capitalize()

    def name(self) -> str:
        return self._draw(lambda: f"{self._proper(FIRST_NAMES, 0.4)} {self._proper(LAST_NAMES, 0.4)}")

    def city(self) -> str:
        def make() -> str:
            if self._rng.random() < 0.4:
                return self._rng.choice(CITIES)
            return self._invent().capitalize() + self._rng.choice(CITY_ENDINGS)

        return self._draw(make)

    def company(self) -> str:
        return self._draw(lambda: f"{self._proper(LAST_NAMES, 0.3)} {self._rng.choice(COMPANY_ENDINGS)}")

    def item(self) -> str:
        def make() -> str:
            adjective = self._rng.choice(ADJECTIVES) + " " if self._rng.random() < 0.5 else ""
            return adjective + (self._rng.choice(ITEMS) if self._rng.random() < 0.5 else self._invent())

        return self._draw(make)

    def email(self, name: str) -> str:
        """Draw an address, derived from `name` in three of four draws."""

        def make() -> str:
            first, *_, last = name.lower().split()
            user = self._rng.choice(
                [first, f"{first}.{last}", first[0] + last, self._invent() + str(self._rng.randint(1, 99))]
            )
            domains = ["example.com", "mail.com", f"{self._invent()}.org", f"{self._invent()}.io", "corp.net"]
            return f"{user}@{self._rng.choice(domains)}"

        return self._draw(make)

    def phone(self) -> str:
        def make() -> str:
            r = self._rng
            if r.random() < 0.5:
                return f"{r.randint(100, 999)}-{r.randint(0, 9999):04d}"
            return f"+{r.randint(1, 99)} {r.randint(100, 999)} {r.randint(0, 999):03d}"

        return self._draw(make)

    def integer(self, low: int, high: int) -> int:
        return self._draw(lambda: self._rng.randint(low, high))

    def price(self) -> float:
        """Draw a price with at most two decimals; whole numbers are floats too."""

        def make() -> float:
            if self._rng.random() < 0.3:
                return float(self._rng.randint(1, 900))
            low, high = self._rng.choice([(1, 20), (1, 200), (100, 5000)])
            return round(self._rng.uniform(low, high), 2)

        return self._draw(make)

    def code(self) -> str:
        def make() -> str:
            prefix = self._rng.choice(["A", "B", "INV", "ORD", "PO", "X", "REF"])
            return f"{prefix}{self._rng.choice(['-', '', '-'])}{self._rng.randint(10, 99999)}"

        return self._draw(make)

    def date(self) -> tuple[str, str]:
        """Draw a date; return it as a text writes it, and in ISO format."""

        def make() -> str:
            return f"{self._rng.randint(2019, 2031)}-{self._rng.randint(1, 12):02d}-{self._rng.randint(1, 28):02d}"

        iso = self._draw(make)
        year, month, day = map(int, iso.split("-"))
        name = MONTHS[month - 1]
        return self._rng.choice([iso, iso, f"{name} {day}, {year}", f"{day} {name} {year}"]), iso

    def time(self) -> str:
        return self._draw(lambda: f"{self._rng.randint(0, 23):02d}:{self._rng.choice([0, 15, 30, 45]):02d}")

    def words(self, count: int | None = None) -> str:
        """Draw `count` lower-case words, by default one to three."""

        def make() -> str:
            some = range(count or self._rng.randint(1, 3))
            return " ".join(self._rng.choice(NOUNS) if self._rng.random() < 0.4 else self._invent() for _ in some)

        return self._draw(make)

    def key(self) -> str:
        """Draw a word for the name of a field."""
        known = [*NOUNS, *COLORS, *ITEMS, *JOBS]
        return self._draw(lambda: self._rng.choice(known) if self._rng.random() < 0.5 else self._invent())

    def filler_word(self) -> str:
        """Draw a meaningless word."""
        return self._invent()
