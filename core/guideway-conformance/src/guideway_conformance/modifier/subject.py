"""A logit modifier under test, with its transform."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

from guideway.api import (
    DeviceBackend,
    Example,
    LogitModifier,
    LogitTransform,
    ModifierContext,
    Need,
    Sampler,
    Stage,
    Vocabulary,
)
from guideway.devices.numpy.device import NumpyDevice
from guideway.errors import PluginError
from guideway.plugins import loading
from guideway.plugins.index import PluginIndex

from guideway_conformance.modifier.evidence import Evidence, require
from guideway_conformance.modifier.strict import StrictDevice
from guideway_conformance.registry import Act
from guideway_conformance.subjects import CannotRunHere, Settings, Subject

__all__ = ["MAX_MODEL_LEN", "MAX_NUM_SEQUENCES", "ModifierSubject", "device_classes"]

MAX_NUM_SEQUENCES = 64
MAX_MODEL_LEN = 16384


class ModifierSubject(Subject):
    """Builds the modifier for a vocabulary, and finds a device its transform can run on."""

    kind = "modifier"

    def __init__(self, component: Any, settings: Settings) -> None:
        super().__init__(component, settings)
        self.evidence = Evidence()

    def require(self, acts: tuple[Act, ...]) -> None:
        require(self.cls, self.evidence, acts)

    @property
    def cls(self) -> type[LogitModifier[Any]]:
        """The class."""
        return cast("type[LogitModifier[Any]]", self.component)

    @classmethod
    def declared(cls, component: Any) -> frozenset[str]:
        """``fork``, where the class says how."""
        return frozenset({"fork"} if component.fork is not LogitModifier.fork else ())

    @classmethod
    def traits(cls, component: Any) -> frozenset[str]:
        """``derived`` or ``stateful``, ``sampler`` or ``logits``, ``ops``, ``bitmask``, ``idempotent``, ``stage:...``,
        ``need:...``, ``raw`` for logits of the model's own type, ``compiles``, ``forces``, ``validates`` for a
        `validate` of its own, ``constructs`` for a constructor of its own, and ``forecasts``: it hears no feedback."""
        transform = getattr(component, "transform", None)
        is_class = isinstance(transform, type)
        stage, needs = getattr(component, "stage", None), getattr(component, "needs", ())
        found = {"derived" if component.derived else "stateful"}
        found.add("sampler" if is_class and issubclass(cast("type", transform), Sampler) else "logits")
        if isinstance(stage, Stage):
            found.add(f"stage:{stage.value}")
        if stage in (Stage.PRE_WARP, Stage.MASK):
            found.add("raw")
        if isinstance(needs, frozenset | set | list | tuple):
            found |= {f"need:{need.value}" for need in needs if isinstance(need, Need)}
        if component.compile is not LogitModifier.compile:
            found.add("compiles")
        if component.forced is not LogitModifier.forced:
            found.add("forces")
        if component.validate is not LogitModifier.validate:
            found.add("validates")
        if component.__init__ is not LogitModifier.__init__:
            found.add("constructs")
        if "need:feedback" not in found:
            found.add("forecasts")
        found |= {name for name in ("bitmask", "idempotent") if getattr(transform, name, None)}
        if not getattr(transform, "arrays", None):
            found.add("ops")
        else:
            device_classes()  # imports the array library once, here, and not in the process of every check
        return frozenset(found)

    def modifier(self, vocabulary: Vocabulary, max_model_len: int = MAX_MODEL_LEN) -> LogitModifier[Any]:
        """A new one."""
        context = ModifierContext(
            vocabulary=vocabulary, max_num_sequences=MAX_NUM_SEQUENCES, max_model_len=max_model_len
        )
        return self.cls(copy.deepcopy(dict(self.settings.options)), context)

    def transform_class(self) -> type[LogitTransform]:
        """The worker's half."""
        return self.cls.transform

    def examples(self) -> Sequence[Example]:
        """Those of the class, or the request options of ``conformance.toml``."""
        return tuple(map(Example, self.settings.requests)) or self.cls.examples

    def device(self) -> DeviceBackend:
        """A device with arrays the transform takes. Raises `CannotRunHere` if none is installed."""
        wanted = self.transform_class().arrays
        if not wanted or NumpyDevice.arrays in wanted:
            return StrictDevice("cpu")
        for backend in device_classes():
            if backend.arrays in wanted and backend.available() is None:
                return backend(self.settings.device or "cpu")
        raise CannotRunHere(f"no device backend with arrays of {' or '.join(sorted(wanted))} can run here")


def device_classes(*, builtin_only: bool = False) -> list[type[DeviceBackend]]:
    """The installed device backends that can be imported, guideway's own first."""
    records = [record for record in PluginIndex.scan().records if record.kind == "device"]
    records.sort(key=lambda record: record.distribution != "guideway")
    found = []
    for record in records:
        if builtin_only and record.distribution != "guideway":
            continue
        try:
            found.append(loading.load(record).component)
        except PluginError:
            continue
    return found
