"""A step uploads each array only once."""

from __future__ import annotations

from guideway.api import JsonSchema, Payload, SamplingParams
from guideway.devices.numpy.device import NumpyDevice
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.fake_host import FakeHost
from tests.support.hostility import PROMPT, VOCABULARY, Ban


class Soft(Ban):
    """A soft modifier at the stage of the grammar mask: a row that it empties is drawn under the mask alone."""

    name = "soft"


class Watched(NumpyDevice):
    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.masks = 0

    def upload(self, payload: Payload) -> Payload:
        self.masks += "bitmask" in payload.arrays
        return super().upload(payload)


def test_a_mask_is_moved_once_a_step_also_beside_other_modifiers() -> None:
    device = Watched("cpu")
    strategies = {"reference": ReferenceStrategy(VOCABULARY, {})}
    host = FakeHost(VOCABULARY, device, strategies=strategies, modifiers=[Soft])
    constraint = JsonSchema({"enum": ["abc", "abd"]})
    params = SamplingParams(max_tokens=20, constraint=constraint, modifiers={"soft": {"id": 3}})
    (result,) = host.generate([PROMPT], [params])
    assert result.error is None
    assert device.masks == len(result.token_ids)
