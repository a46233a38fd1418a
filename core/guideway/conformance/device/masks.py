"""What a bitmask does to logits."""

from __future__ import annotations

import numpy as np

from guideway.conformance.device.subject import DeviceSubject
from guideway.conformance.registry import check
from guideway.conformance.subjects import expect


@check("device", tier="smoke")
def zero_bits_forbid(subject: DeviceSubject) -> None:
    """A token whose bit is 0 gets -inf, and no other changes."""
    backend = subject.backend()
    logits = backend.ops.asarray(np.zeros((1, 32), dtype=np.float32))
    result = backend.apply_bitmask(
        logits, backend.ops.asarray(np.array([[5]], dtype=np.int32)), backend.ops.asarray(np.array([0]))
    )
    host = backend.download({"x": result}).result()["x"]
    finite = np.flatnonzero(np.isfinite(host[0])).tolist()
    expect(finite == [0, 2], f"of a mask that allows tokens 0 and 2, {finite} stayed finite")
