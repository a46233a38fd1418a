"""A workflow under test, with a model that it serves and requests that it takes."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidConfiguration,
    InvalidRequest,
    ModelFolder,
    OutputProcessor,
    Prepared,
    RequestProcessor,
    StepBuilder,
    Task,
    Workflow,
    WorkflowContext,
    WorkflowRunner,
    WorkScheduler,
)
from guideway.api.options import parse_options, short_repr
from guideway.api.workflow import PARTS

from guideway_conformance.subjects import CannotRunHere, NotPerformed, Subject, expect

__all__ = [
    "FORMS",
    "OTHER_WORDS",
    "OVERFLOWING",
    "SPECIAL",
    "UNKNOWN_WORD",
    "WORDS",
    "Host",
    "WorkflowSubject",
    "expect_vocabulary",
    "same",
    "with_other_options",
]

MODEL = "model"
"""The option of the suite that names the folder of a model; the others are the workflow's."""

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(60))]
VALUES: tuple[Any, ...] = (
    *("w1", "w2 w3 w4", "w5 w6 w7 w8 w9 w10 w11", "w1 w9"),
    *(("w1", "w2 w3"), ("w4 w5 w6", "w7"), ("w1", "w8 w9 w10 w11"), ("w2 w3", "w3")),
    ("w2 w3 w4 w5", "w8 w9 w10 w11"),
    *([2, 5, 6, 3], {"prompt": "w12 w13"}),
)
"""The requests that are tried where the settings name none: those that the input processor lets pass are made."""

FORMS: tuple[Callable[[str], Any], ...] = (
    lambda text: text,
    lambda text: ("w1", text),
    lambda text: (text, "w1"),
    lambda text: {"prompt": text},
)
"""The inputs that one text is in."""

SPECIAL = frozenset({0, 2, 3})
"""The ids of those of `WORDS` that stand for no text."""

OTHER_WORDS = [*WORDS[:4], *WORDS[5:], WORDS[4]]
"""The same words for the tokenizer of another model, each with another id."""

OVERFLOWING = "w11"
"""A word of some of `VALUES`, and not of others."""

UNKNOWN_WORD = "unheard"
"""A word that is not among `WORDS`."""


@dataclass(frozen=True, slots=True)
class Host:
    """The six parts, called as a host calls them."""

    input_processor: InputProcessor
    request_processor: RequestProcessor
    scheduler: WorkScheduler
    step_builder: StepBuilder
    runner: WorkflowRunner
    output_processor: OutputProcessor

    def results(self, work: Sequence[Prepared]) -> list[Any]:
        """The results of one step, which goes to a worker of another process and back."""
        step = pickle.loads(pickle.dumps(self.step_builder.build(work)))
        output = pickle.loads(pickle.dumps(self.runner.execute(step)))
        found = self.output_processor.results(work, output)
        expect(len(found) == len(work), f"it gave {len(found)} results of {len(work)} requests")
        return found

    def prepared(self, tasks: Sequence[Task]) -> list[Prepared]:
        """All tasks, none of which is wrong."""
        found = self.request_processor.prepare(tasks)
        expect(len(found) == len(tasks), f"it prepared {len(found)} requests of {len(tasks)} tasks")
        for task, request in zip(tasks, found, strict=True):
            expect(isinstance(request, Prepared), f"of {task.value!r}, which passed the check, came {request!r}")
            assert isinstance(request, Prepared)
            expect(request.task is task, f"in the place of {task.value!r} came {request.task.value!r}")
            expect_vocabulary(self.request_processor, request)
        return found  # type: ignore[return-value]


def expect_vocabulary(processor: RequestProcessor, request: Prepared) -> None:
    """That the tokens of a request are of the vocabulary of the processor's model."""
    size = int(processor.context.model.config.get("vocab_size") or 1 << 62)
    ids = np.asarray(request.token_ids)
    wrong = [token_id for token_id in ids.reshape(-1).tolist() if not 0 <= token_id < size]
    expect(
        not wrong,
        f"of {short_repr(request.task.value)}, which passed the check, came the token {wrong[:1]}, and the model has "
        f"those from 0 to {size - 1}",
    )


class WorkflowSubject(Subject):
    """Makes parts for a model that the workflow serves: the one of the option ``model``, else one without weights, else
    a small BERT of random weights."""

    kind = "workflow"
    component: type[Workflow]

    @classmethod
    def prepare(cls) -> None:
        with contextlib.suppress(ImportError):
            from transformers import BertModel  # noqa: F401 - slow to import

    @cached_property
    def model(self) -> ModelFolder:
        """The model. Raises `CannotRunHere` if the workflow serves none of those that can be made."""
        said = ""
        for folder in self._folders():
            model = ModelFolder.read(folder)
            reason = self.component.supports(model)
            if reason is None:
                return model
            said = f"it serves no model that the suite has: {reason}; name one with the option {MODEL!r}"
        raise CannotRunHere(said)

    def _folders(self) -> Iterator[Path]:
        if given := self.settings.options.get(MODEL):
            yield Path(given)
            return
        self._scratch = tempfile.TemporaryDirectory()
        empty = Path(self._scratch.name, "empty")
        empty.mkdir()
        (empty / "config.json").write_text(json.dumps({"model_type": "conformance"}), "utf-8")
        yield empty
        for labels in (0, 1, 3):
            folder = Path(self._scratch.name, f"bert{labels}")
            _store_bert(folder, labels)
            yield folder

    @cached_property
    def other_context(self) -> WorkflowContext:
        """The same, with a model of other weights, if the suite made those of the model."""
        if MODEL in self.settings.options or not (self.model.path / "tokenizer.json").exists():
            return self.context
        folder = Path(self._scratch.name, "other", self.model.path.name)  # folders of two models may have one name
        _store_bert(folder, int(self.model.path.name.removeprefix("bert")), seed=1, words=OTHER_WORDS)
        return replace(self.context, model=ModelFolder.read(folder))

    @cached_property
    def overflowing_context(self) -> WorkflowContext | None:
        """The same, with a model that has no finite number for `OVERFLOWING`, if the suite made the model."""
        if MODEL in self.settings.options or not (self.model.path / "tokenizer.json").exists():
            return None
        folder = Path(self._scratch.name, "overflowing")
        _store_bert(folder, int(self.model.path.name.removeprefix("bert")), overflowing=OVERFLOWING)
        return replace(self.context, model=ModelFolder.read(folder))

    @cached_property
    def context(self) -> WorkflowContext:
        """The context of every part."""
        own = {name: value for name, value in self.settings.options.items() if name not in (MODEL, *PARTS)}
        return WorkflowContext(
            model=self.model,
            max_model_len=self.component.default_length(self.model),
            options=parse_options(self.component.options, own, where=f"workflow.{self.component.name}"),
        )

    @cached_property
    def strict_context(self) -> WorkflowContext:
        """The same, if the suite made the model, with a tokenizer that raises at a word it does not know."""
        tokenizer = self.model.path / "tokenizer.json"
        if MODEL in self.settings.options or not tokenizer.exists():
            return self.context
        folder = Path(self._scratch.name, "strict")
        shutil.copytree(self.model.path, folder)
        stored = json.loads(tokenizer.read_text("utf-8"))
        stored["model"]["unk_token"] = UNKNOWN_WORD  # where it is not in the vocabulary, an unknown word is an error
        (folder / tokenizer.name).write_text(json.dumps(stored), "utf-8")
        return replace(self.context, model=ModelFolder.read(folder))

    def under_other_options(self) -> Iterator[WorkflowSubject]:
        """The workflow with other options of an operator, which it takes: each number once larger and once as small as
        can be, and each that is one of a few, or true or false, once another, all at the same time."""
        usual = self.context.options
        hints = get_type_hints(type(usual), include_extras=True)
        for change in (_larger, _smaller):
            others: dict[str, Any] = {}
            for each in fields(usual):
                for value in change(getattr(usual, each.name), hints[each.name]):
                    with contextlib.suppress(InvalidConfiguration):
                        parse_options(type(usual), {each.name: value}, where="workflow")
                        others[each.name] = value
                        break
            if not others:
                continue
            options = {**self.settings.options, **others}
            other = WorkflowSubject(self.component, replace(self.settings, options=options))
            other.__dict__.update({name: vars(self)[name] for name in ("model", "_scratch") if name in vars(self)})
            with contextlib.suppress(InvalidConfiguration, InvalidRequest):
                other.host()
                yield other

    def part(self, name: str, context: WorkflowContext | None = None) -> Any:
        """A new part, made from `context` if that is given."""
        address = self.settings.options.get(name, self.component.parts[name])
        cls = resolve_name(address)
        expect(
            isinstance(cls, type) and issubclass(cls, PARTS[name]),
            f"{name} {address!r} is no subclass of {PARTS[name].__name__}",
        )
        return cls(context or self.context)

    def host(self, context: WorkflowContext | None = None, *, load: bool = True) -> Host:
        """All parts, made from `context` if that is given, with the model loaded if `load`."""
        made = Host(**{name: self.part(name, context) for name in PARTS})
        if load:
            made.runner.load()
        return made

    def tasks(self, host: Host, *, at_least: int = 2) -> list[Task]:
        """Requests that pass the check. Raises `NotPerformed` if too few do."""
        asked = [(each.get("task"), each["input"], each.get("params", {})) for each in self.settings.requests]
        found: list[Task] = []
        for kind, value, params in asked or [(None, value, {}) for value in VALUES]:
            task = self.task(value, kind=kind, params=params, arrival=len(found))
            try:
                host.input_processor.check(task)
            except InvalidRequest:
                continue
            found.append(task)
        if len(found) < at_least:
            raise NotPerformed(f"of the requests that the suite has it takes {len(found)}; give it some in `requests`")
        return found

    def task(self, value: Any, *, kind: str | None = None, params: Any = None, arrival: int = 0) -> Task:
        """One request."""
        return Task(
            request_id=f"request-{arrival}",
            kind=kind or self.component.tasks[0],
            value=tuple(value) if isinstance(value, list) and value and isinstance(value[0], str) else value,
            params=params or {},
            arrival=arrival,
        )


def with_other_options(function: Callable[[WorkflowSubject], None]) -> Callable[[WorkflowSubject], None]:
    """`function`, carried out again with other options of an operator."""

    @wraps(function)
    def each(subject: WorkflowSubject) -> None:
        function(subject)
        for other in subject.under_other_options():
            options = {name: value for name, value in other.settings.options.items() if name != MODEL}
            what = ", ".join(f"{name} = {short_repr(value)}" for name, value in options.items())
            try:
                function(other)
            except (CannotRunHere, NotPerformed):
                continue
            except AssertionError as error:
                raise AssertionError(f"with the options {what}, {error}") from error
            except Exception as error:
                raise AssertionError(f"with the options {what} it raised {error!r}") from error

    return each


def _larger(value: Any, hint: Any) -> Iterator[Any]:
    """Values of an option in the place of `value`, the one to be taken first."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (16 * value, 4 * value, 2 * value, value + 1)
    yield from (each for each in _few(hint) if each != value)


def _smaller(value: Any, hint: Any) -> Iterator[Any]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield from (each for each in (3, 2, 1) if each < value)
    yield from (each for each in reversed(_few(hint)) if each != value)


def _few(hint: Any) -> list[Any]:
    """The values of an option that is one of a few."""
    return [value for value in get_args(hint) if isinstance(value, str)] if get_origin(hint) is Literal else []


def same(one: Any, other: Any) -> bool:
    """Return whether two results are equal as far as numbers of floating point can be."""
    if isinstance(one, GuidewayError) or isinstance(other, GuidewayError):
        return type(one) is type(other)
    if is_dataclass(one) and not isinstance(one, type):
        return type(one) is type(other) and all(
            same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one)
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic | float):
        if np.asarray(one).dtype.kind not in "fiub" or np.asarray(other).dtype.kind not in "fiub":
            return bool(np.array_equal(one, other))
        return np.shape(one) == np.shape(other) and np.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
    return bool(one == other)


def _store_bert(
    folder: Path, labels: int, *, seed: int = 0, words: Sequence[str] = WORDS, overflowing: str | None = None
) -> None:
    """A BERT of random weights with its tokenizer; `labels`: 0 for none. `overflowing`: a word without finite
    numbers."""
    try:
        import torch
        from tokenizers import Tokenizer, models, pre_tokenizers, processors
        from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast
    except ImportError as error:
        raise CannotRunHere("a workflow needs a model: pip install 'guideway[engine]'") from error
    head: Any = {"num_labels": labels} if labels else {}
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        **head,
    )
    torch.manual_seed(seed)
    model: Any = BertForSequenceClassification(config) if labels else BertModel(config)
    if overflowing is not None:
        with torch.no_grad():
            model.get_input_embeddings().weight[words.index(overflowing)] = torch.inf
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    fast: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    fast.save_pretrained(folder)
