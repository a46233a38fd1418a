"""Small plugins for tests of the suite, as installed packages and as bare classes in test files."""

from __future__ import annotations

from pathlib import Path

GOOD = """\
from guideway.api import hookimpl
from guideway.devices.numpy.device import NumpyDevice


class Device(NumpyDevice):
    contract = "1.0"
    name = "mine"


@hookimpl
def guideway_device_backend():
    return Device
"""
BROKEN = f"""\
{GOOD}

def apply_bitmask(self, logits, bitmask, rows):
    return NumpyDevice.apply_bitmask(self, logits, bitmask & ~1, rows)


Device.apply_bitmask = apply_bitmask
"""
"""A device that never allows token 0."""
UNLOADABLE = "raise OSError('no such library')\n"


def install(site: Path, source: str) -> None:
    """Write the package ``gwt-mine`` 1.0 with ``device.mine`` to `site`, with metadata as an installer writes it."""
    info = site / "gwt_mine-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (site / "gwt_mine.py").write_text(source)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gwt-mine\nVersion: 1.0\nRequires-Dist: guideway\n")
    (info / "entry_points.txt").write_text("[guideway.v1]\ndevice.mine = gwt_mine\n")
