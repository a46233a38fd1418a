"""The subjects of the prompts: for each domain its fields, their values, schemas and sentences."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from guideway_demo_model.training.templates import Split, expand, groups, pool
from guideway_demo_model.training.values import COLORS, CURRENCIES, JOBS, Values

__all__ = ["Domains", "Facts", "number"]

Schema: TypeAlias = dict[str, Any]

STRING: Schema = {"type": "string", "maxLength": 60}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
DATE: Schema = {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"}
ITEM: Schema = {
    "type": "object",
    "properties": {"name": STRING, "quantity": INTEGER, "price": NUMBER},
    "required": ["name", "quantity", "price"],
    "additionalProperties": False,
}
ROOMS = ("single", "double", "suite")
UNITS = ("celsius", "fahrenheit")
EVERYDAY = frozenset([*ROOMS, *UNITS, *JOBS, *COLORS, *(word for words in CURRENCIES.values() for word in words)])


@dataclass(frozen=True)
class Facts:
    """A subject of a text and its fields, in order."""

    domain: str
    values: dict[str, Any]
    schemas: dict[str, Schema]
    sentences: dict[str, str]
    """Sentences by field, without a final stop. A currency has none: the amount's sentence names it."""


def _blends_in(slot: str, value: object) -> bool:
    """Return whether `value` looks like the words of any sentence. The instruction names a record's key."""
    text = str(value)
    return slot != "k" and text[0].islower() and "@" not in text and text not in EVERYDAY


def number(value: float) -> str:
    """Write a number as texts do: without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Domains:
    """Draws `Facts` with values and templates of their splits.

    With a `noise` above 0 a model cannot rely on the words it was taught alone: that share of the sentences with a
    value begins with a small letter, the same share has a word replaced by another, and that share of the lists of
    items and of the sentences for yes or no is odd too. The meaning of a sentence stays clear.
    """

    def __init__(self, rng: random.Random, *, values: Split, templates: Split, noise: float = 0) -> None:
        self._rng = rng
        self._templates = templates
        self._noise = noise
        self.draw = Values(rng, values)
        self.every: dict[str, tuple[int, Callable[[], Facts]]] = {
            "person": (3, self.person),
            "invoice": (3, self.invoice),
            "order": (3, self.order),
            "booking": (3, self.booking),
            "product": (2, self.product),
            "record": (4, self.record),
        }
        """Domains by name, each with its weight and a function that draws its facts."""

    def sentence(self, group: str, **slots: object) -> str:
        """Return a random sentence of `group` with its slots filled."""
        template = expand(self._rng.choice(pool(group, self._templates)), self._rng)
        if slots and self._noise and self._rng.random() < 2 * self._noise:
            keep_near = group == "copy.text" or any(_blends_in(slot, value) for slot, value in slots.items())
            template = self._disturb(template, keep_near)
        return template.format(**slots)

    def _disturb(self, template: str, keep_near: bool) -> str:
        """Disturb the words of `template`; `keep_near` keeps those next to a value, which alone show its extent."""
        words = template.split(" ")
        if self._coin():
            words[0] = words[0] if "{" in words[0] else words[0].lower()
            return " ".join(words)
        slots = [place for place, word in enumerate(words) if "{" in word]
        kept = {place + step for place in slots for step in ((-1, 0, 1) if keep_near else (0,))}
        if free := sorted(set(range(len(words))) - kept):
            words[self._rng.choice(free)] = self._any_word()
        return " ".join(words)

    def _any_word(self) -> str:
        """Return a meaningless word, or a word of another sentence; in lower case, or it might be part of a name."""
        if self._coin():
            return self.draw.filler_word()
        other = expand(self._rng.choice(pool(self._rng.choice(list(groups())), self._templates)), self._rng)
        return self._rng.choice([word for word in other.lower().split(" ") if "{" not in word] or ["the"])

    def _item_form(self) -> str:
        if self._noise and self._rng.random() < self._noise:
            return self._odd_item_form()
        return expand(self._rng.choice(pool("order.item", self._templates)), self._rng)

    def _odd_item_form(self) -> str:
        """Return quantity, name and price with separators that cannot be taken for a part of the name."""
        r = self._rng
        glue = "".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=r.randint(1, 3)))
        before_name = r.choice([" ", f" {glue} ", f"{glue} ", f" {self._any_word()} ", ": ", " - "])
        after_name = r.choice([": ", " - ", ", ", " @ ", " (", " / ", " = "])
        if self._coin():
            form = f"{{quantity}}{before_name}{{name}}{after_name}{{price}}"
        else:
            form = f"{{name}}{after_name}{{quantity}}{r.choice([', ', ' / ', ' @ ', f' {glue} ', f'{glue} '])}{{price}}"
        return form + (")" if "(" in form else r.choice(["", "", " each"]))

    def _yes_no(self, group: str, value: bool) -> str:
        words = self.sentence(f"{group}.{'yes' if value else 'no'}").split(" ")
        if self._noise and self._rng.random() < self._noise:
            words.insert(self._rng.randint(0, len(words)), self.draw.filler_word())
        return " ".join(words)

    def _coin(self) -> bool:
        return self._rng.random() < 0.5

    def person(self) -> Facts:
        draw, say = self.draw, self.sentence
        name = draw.name()
        values: dict[str, Any] = {
            "name": name,
            "age": draw.integer(18, 97),
            "email": draw.email(name),
            "phone": draw.phone(),
            "city": draw.city(),
            "occupation": self._rng.choice(JOBS),
            "married": self._coin(),
        }
        sentences = {field: say(f"person.{field}", x=value) for field, value in values.items() if field != "married"}
        sentences["married"] = self._yes_no("person.married", values["married"])
        schemas = dict.fromkeys(values, STRING) | {"age": INTEGER, "married": BOOLEAN}
        return Facts("person", values, schemas, sentences)

    def invoice(self) -> Facts:
        draw, say = self.draw, self.sentence
        date, iso = draw.date()
        currency = self._rng.choice(list(CURRENCIES))
        values: dict[str, Any] = {
            "invoice_number": draw.code(),
            "vendor": draw.company(),
            "amount": draw.price(),
            "currency": currency,
            "due_date": iso,
            "paid": self._coin(),
        }
        sentences = {
            "invoice_number": say("invoice.invoice_number", x=values["invoice_number"]),
            "vendor": say("invoice.vendor", x=values["vendor"]),
            "amount": say("invoice.amount", x=number(values["amount"]), c=self._rng.choice(CURRENCIES[currency])),
            "due_date": say("invoice.due_date", x=date),
            "paid": self._yes_no("invoice.paid", values["paid"]),
        }
        schemas: dict[str, Schema] = {
            "invoice_number": STRING,
            "vendor": STRING,
            "amount": NUMBER,
            "currency": {"enum": list(CURRENCIES)},
            "due_date": DATE,
            "paid": BOOLEAN,
        }
        return Facts("invoice", values, schemas, sentences)

    def order(self) -> Facts:
        draw, say = self.draw, self.sentence
        items: list[dict[str, Any]] = [
            {"name": draw.item(), "quantity": draw.integer(1, self._rng.choice([20, 20, 99])), "price": draw.price()}
            for _ in range(self._rng.choice([1, 1, 2, 2, 3]))
        ]
        form = self._item_form()  # the same for the whole list
        phrases = [form.format(**{**item, "price": number(item["price"])}) for item in items]
        values: dict[str, Any] = {
            "order_id": draw.code(),
            "customer": draw.name(),
            "items": items,
            "express": self._coin(),
        }
        sentences = {
            "order_id": say("order.order_id", x=values["order_id"]),
            "customer": say("order.customer", x=values["customer"]),
            "items": say("order.items", x=self.listing(phrases)),
            "express": self._yes_no("order.express", values["express"]),
        }
        schemas: dict[str, Schema] = {
            "order_id": STRING,
            "customer": STRING,
            "items": {"type": "array", "items": ITEM, "minItems": 1, "maxItems": 4},
            "express": BOOLEAN,
        }
        return Facts("order", values, schemas, sentences)

    def booking(self) -> Facts:
        draw, say = self.draw, self.sentence
        date, iso = draw.date()
        values: dict[str, Any] = {
            "guest": draw.name(),
            "place": draw.company(),
            "date": iso,
            "time": draw.time(),
            "people": draw.integer(1, 40),
            "room": self._rng.choice(ROOMS),
        }
        said = values | {"date": date}
        sentences = {field: say(f"booking.{field}", x=value) for field, value in said.items()}
        schemas: dict[str, Schema] = {
            "guest": STRING,
            "place": STRING,
            "date": DATE,
            "time": STRING,
            "people": INTEGER,
            "room": {"enum": list(ROOMS)},
        }
        return Facts("booking", values, schemas, sentences)

    def product(self) -> Facts:
        draw, say = self.draw, self.sentence
        values: dict[str, Any] = {
            "product": draw.item(),
            "price": draw.price(),
            "color": self._rng.choice(COLORS),
            "in_stock": self._coin(),
            "tags": [draw.words(1) for _ in range(self._rng.randint(1, 4))],
        }
        sentences = {
            "product": say("product.product", x=values["product"]),
            "price": say("product.price", x=number(values["price"])),
            "color": say("product.color", x=values["color"]),
            "in_stock": self._yes_no("product.in_stock", values["in_stock"]),
            "tags": say("product.tags", x=", ".join(values["tags"])),
        }
        schemas: dict[str, Schema] = {
            "product": STRING,
            "price": NUMBER,
            "color": STRING,
            "in_stock": BOOLEAN,
            "tags": {"type": "array", "items": STRING, "maxItems": 6},
        }
        return Facts("product", values, schemas, sentences)

    def record(self) -> Facts:
        """Draw fields with any names, each a string or an integer."""
        draw = self.draw
        values: dict[str, Any] = {}
        schemas: dict[str, Schema] = {}
        sentences: dict[str, str] = {}
        for _ in range(self._rng.randint(2, 5)):
            key = draw.key()
            if self._rng.random() < 0.35:
                values[key], schemas[key] = draw.integer(0, 9999), INTEGER
            else:
                text = self._rng.choice([draw.words, draw.name, draw.city, draw.code])
                values[key], schemas[key] = text(), STRING
            sentences[key] = self.sentence("record.pair", k=key, x=values[key])
        return Facts("record", values, schemas, sentences)

    def tool_call(self) -> tuple[str, dict[str, Any], dict[str, Schema], str]:
        """Draw a tool's name, its arguments, their schemas, and the sentence that asks for the call."""
        draw, r = self.draw, self._rng
        name = r.choice(["get_weather", "send_message", "set_timer", "search", "book_flight", "calculate"])
        group = f"tool.{name}"
        arguments: dict[str, Any]
        schemas: dict[str, Schema]
        if name == "get_weather":
            arguments = {"city": draw.city(), "unit": r.choice(UNITS)}
            schemas = {"city": STRING, "unit": {"enum": list(UNITS)}}
        elif name == "send_message":
            arguments, schemas = {"to": draw.name(), "body": draw.words()}, {"to": STRING, "body": STRING}
        elif name == "set_timer":
            arguments = {"minutes": draw.integer(1, 180), "label": draw.words()}
            schemas = {"minutes": INTEGER, "label": STRING}
        elif name == "search":
            arguments = {"query": draw.words(), "limit": draw.integer(1, 50)}
            schemas = {"query": STRING, "limit": INTEGER}
        elif name == "book_flight":
            date, iso = draw.date()
            arguments = {"origin": draw.city(), "destination": draw.city(), "date": iso}
            schemas = {"origin": STRING, "destination": STRING, "date": DATE}
            return name, arguments, schemas, self.sentence(group, **{**arguments, "date": date})
        else:
            operations = ["add", "subtract", "multiply", "divide"]
            operation = r.choice(operations)
            arguments = {"operation": operation, "a": draw.integer(0, 9999), "b": draw.integer(0, 9999)}
            schemas = {"operation": {"enum": operations}, "a": INTEGER, "b": INTEGER}
            group = f"{group}.{operation}"
        return name, arguments, schemas, self.sentence(group, **arguments)

    def copy_text(self) -> str:
        """Draw a text to be repeated."""
        draw, r = self.draw, self._rng
        makers: list[Callable[[], str]] = [
            draw.words,
            draw.name,
            draw.city,
            draw.code,
            lambda: draw.email(draw.name()),
            draw.phone,
            lambda: number(draw.price()),
        ]
        return " ".join(r.choice(makers)() for _ in range(r.randint(1, 5)))

    def listing(self, phrases: list[str]) -> str:
        """Join `phrases` as ``a, b, c`` or ``a, b and c``."""
        if len(phrases) < 2 or self._rng.random() < 0.55:
            return ", ".join(phrases)
        return f"{', '.join(phrases[:-1])} and {phrases[-1]}"
