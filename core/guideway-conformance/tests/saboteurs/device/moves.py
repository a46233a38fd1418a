"""Bugs of moving arrays, and backends in each other's way."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from guideway.api import Payload
from guideway.api.steps import Array
from guideway.devices.numpy.device import Downloaded
from numpy.typing import NDArray

from saboteurs import saboteur
from saboteurs.device.base import BFloat16, Sabotaged, SabotagedTensors, Tensor


@saboteur("device.says_whether_it_can_run")
class RaisesWhenAsked(Sabotaged):
    """`available` raises where the device is missing."""

    @classmethod
    def available(cls) -> str | None:
        raise RuntimeError("no driver")


@saboteur("device.says_whether_it_can_run")
class LooksByImporting(Sabotaged):
    """`available` imports what it needs, and raises where that is not installed."""

    @classmethod
    def available(cls) -> str | None:
        import pytest

        return None if pytest.__version__ else "it has no version"


@saboteur("device.says_whether_it_can_run")
class NoReason(Sabotaged):
    """`available` gives an empty reason."""

    @classmethod
    def available(cls) -> str | None:
        return ""


@saboteur("device.says_whether_it_can_run")
class SaysYes(Sabotaged):
    """`available` answers True instead of None."""

    @classmethod
    def available(cls) -> Any:
        return True


@saboteur("device.arrays_go_and_come")
class NarrowsIntegers(Sabotaged):
    """`asarray` makes int32 of int64."""

    def asarray(self, array: NDArray[Any]) -> Array:
        return array.astype(np.int32) if array.dtype == np.int64 else array


@saboteur("device.names_itself")
class Nameless(Sabotaged):
    """Has no name."""

    name = ""


@saboteur("device.names_itself")
class NamesItsArraysAfterItself(Sabotaged):
    """Its arrays are NumPy's, and it gives them a name of its own."""

    arrays = "sabotaged"


@saboteur("device.operations_can_be_called")
class FirstOfAll(Sabotaged):
    """Its `argmax` has no place for what it should look at."""

    def argmax(self) -> Array:  # type: ignore[override]
        return 0


@saboteur("device.says_whether_shapes_are_static")
class OftenStatic(Sabotaged):
    """`static_shapes` is a word."""

    static_shapes: Any = "often"


@saboteur("device.refuses_unknown_devices")
class TakesAnyDevice(Sabotaged):
    """Runs where it likes, whatever device it is given."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.device = device


@saboteur("device.refuses_unknown_devices")
class PassesErrorsOn(Sabotaged):
    """A device that does not exist raises what its library raises."""

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise RuntimeError(f"invalid device string: {device!r}")
        super().__init__(device)


@saboteur("device.refuses_unknown_devices")
class TakesWhatBeginsAlike(Sabotaged):
    """Looks at the first letters of a device's name."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device[:3])
        self.device = device


@saboteur("device.refuses_unknown_devices")
class PassesMissingOn(Sabotaged):
    """An accelerator that is missing raises what its library raises."""

    def __init__(self, device: str = "cpu") -> None:
        assert not device.startswith("cuda"), "not compiled with CUDA enabled"
        super().__init__(device)


@saboteur("device.scope_of_each_step")
class ScopeRaises(Sabotaged):
    """Its scope cannot be entered."""

    def scope(self) -> AbstractContextManager[object]:
        raise RuntimeError("this library has no such switch")


@saboteur("device.scope_of_each_step")
class ScopeOnce(Sabotaged):
    """Its scope can be entered once."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.only = self.entered()

    @contextmanager
    def entered(self) -> Iterator[None]:
        yield

    def scope(self) -> AbstractContextManager[object]:
        return self.only


class _Again:
    """A scope that can be entered many times."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@saboteur("device.scope_of_each_step")
class OneScopeForAll(Sabotaged):
    """All steps share one scope, which knows the step that entered it last."""

    only = _Again()

    def scope(self) -> AbstractContextManager[object]:
        return self.only


@saboteur("device.asarray_of_any_memory")
class AtLeastOneAxis(Sabotaged):
    """`asarray` makes an array of one element of a single number."""

    def asarray(self, array: NDArray[Any]) -> Array:
        return np.ascontiguousarray(array)


@saboteur("device.asarray_of_any_memory")
class WholeMemory(Sabotaged):
    """`asarray` reads the memory an array begins in without its strides."""

    def asarray(self, array: NDArray[Any]) -> Array:
        whole = array.base if isinstance(array.base, np.ndarray) and array.base.dtype == array.dtype else array
        return np.resize(whole.reshape(-1), array.shape)


@saboteur("device.asarray_keeps_dtypes")
class WidensHalves(Sabotaged):
    """`asarray` makes float32 of float16."""

    def asarray(self, array: NDArray[Any]) -> Array:
        return array.astype(np.float32) if array.dtype == np.float16 else array


@saboteur("device.from_logits_keeps_values")
class CleansLogits(Sabotaged):
    """`from_logits` replaces what is not finite."""

    def from_logits(self, logits: Array) -> Array:
        return np.nan_to_num(super().from_logits(logits))


@saboteur("device.from_logits_of_numpy")
class WantsItsOwn(SabotagedTensors):
    """`from_logits` takes arrays of its own library alone."""

    def from_logits(self, logits: Array) -> Array:
        if isinstance(logits, np.ndarray) and not isinstance(logits, Tensor):
            raise TypeError("logits have to be tensors")
        return super().from_logits(logits)


@saboteur("device.from_logits_of_numpy")
class TakesMemoryInOrder(Sabotaged):
    """`from_logits` reads a NumPy array as if its columns lay side by side."""

    def from_logits(self, logits: Array) -> Array:
        if not isinstance(logits, np.ndarray) or logits.flags.c_contiguous:
            return super().from_logits(logits)
        size = logits.itemsize
        return np.lib.stride_tricks.as_strided(logits, strides=(logits.shape[1] * size, size)).copy()


@saboteur("device.from_logits_of_numpy")
@saboteur("device.from_logits_of_torch")
class SharesRows(Sabotaged):
    """Rows that are in the same memory stay there."""

    def from_logits(self, logits: Array) -> Array:
        array = np.asarray(logits)
        return array if array.flags.writeable else array.copy()


@saboteur("device.from_logits_of_numpy")
class RefusesBackwards(Sabotaged):
    """Refuse logits whose strides are below 0, as torch does."""

    def from_logits(self, logits: Array) -> Array:
        if isinstance(logits, np.ndarray) and min(logits.strides) < 0:
            raise ValueError("some strides are negative")
        return super().from_logits(logits)


@saboteur("device.from_logits_of_torch")
class WantsNumpy(Sabotaged):
    """`from_logits` takes NumPy arrays alone."""

    def from_logits(self, logits: Array) -> Array:
        if not isinstance(logits, np.ndarray):
            raise TypeError("logits have to be NumPy arrays")
        return super().from_logits(logits)


@saboteur("device.from_logits_of_torch")
class TakesTensorsInOrder(Sabotaged):
    """`from_logits` reads a tensor as if its columns lay side by side."""

    def from_logits(self, logits: Array) -> Array:
        if hasattr(logits, "detach"):
            logits = logits.as_strided(logits.shape, (logits.shape[1], 1)).clone()
        return super().from_logits(logits)


@saboteur("device.from_logits_of_torch_in_16_bits")
class OneKindOfHalf(Sabotaged):
    """`from_logits` makes float16 of bfloat16."""

    def from_logits(self, logits: Array) -> Array:
        is_bfloat16 = str(logits.dtype) == "torch.bfloat16"
        return super().from_logits(logits.half() if is_bfloat16 else logits)


@saboteur("device.from_logits_of_torch_in_16_bits")
class NoHalves(Sabotaged):
    """`from_logits` takes tensors of float32 alone."""

    def from_logits(self, logits: Array) -> Array:
        if str(logits.dtype) in ("torch.float16", "torch.bfloat16"):
            raise TypeError("logits have to be of float32")
        return super().from_logits(logits)


@saboteur("device.from_logits_of_bfloat16")
class RefusesBFloat16(SabotagedTensors):
    """`from_logits` does not take bfloat16."""

    def from_logits(self, logits: Array) -> Array:
        if isinstance(logits, BFloat16):
            raise TypeError("NumPy has no bfloat16")
        return super().from_logits(logits)


@saboteur("device.upload_keeps_payloads")
class LosesShared(Sabotaged):
    """`upload` drops what the rows share."""

    def upload(self, payload: Payload) -> Payload:
        return replace(super().upload(payload), shared={})


@saboteur("device.upload_keeps_payloads")
class SortsRowsOnly(Sabotaged):
    """`upload` sorts the rows, and not what belongs to them."""

    def upload(self, payload: Payload) -> Payload:
        return replace(super().upload(payload), rows=np.sort(payload.rows))


@saboteur("device.upload_keeps_payloads")
class SharesItsArgument(Sabotaged):
    """`upload` scales the host's own memory."""

    def upload(self, payload: Payload) -> Payload:
        uploaded = super().upload(replace(payload, arrays={k: v.copy() for k, v in payload.arrays.items()}))
        for array in payload.arrays.values():
            array[:] = 0
        return uploaded


@saboteur("device.upload_keeps_payloads")
class UploadsMemoryInOrder(Sabotaged):
    """`upload` takes arrays in the order in which they lie in memory."""

    def upload(self, payload: Payload) -> Payload:
        arrays = {name: array.ravel("K").reshape(array.shape).copy() for name, array in payload.arrays.items()}
        return replace(super().upload(payload), arrays=arrays)


@saboteur("device.uploads_stay")
class UploadsIntoOneBuffer(Sabotaged):
    """`upload` writes arrays of one name, shape and dtype into the same memory."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.buffers: dict[object, Array] = {}

    def upload(self, payload: Payload) -> Payload:
        arrays = {}
        for name, array in payload.arrays.items():
            arrays[name] = self.buffers.setdefault((name, array.shape, array.dtype), np.empty_like(array))
            arrays[name][...] = array
        return replace(super().upload(payload), arrays=arrays)


@saboteur("device.upload_takes_parts")
class WantsRows(Sabotaged):
    """`upload` fails for a payload without rows."""

    def upload(self, payload: Payload) -> Payload:
        if not payload.rows.max() >= 0:
            raise ValueError("no rows")
        return super().upload(payload)


@saboteur("device.upload_reads_anew")
class UploadsOnce(Sabotaged):
    """`upload` remembers the payloads it has seen."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.seen: dict[int, tuple[Payload, Payload]] = {}

    def upload(self, payload: Payload) -> Payload:
        if id(payload) not in self.seen:
            copies = {name: array.copy() for name, array in payload.arrays.items()}
            self.seen[id(payload)] = payload, replace(payload, rows=payload.rows.copy(), arrays=copies)
        return self.seen[id(payload)][1]


@saboteur("device.upload_reads_anew")
class UploadsSharedOnce(Sabotaged):
    """`upload` remembers what the rows of a payload share by its names."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.seen: dict[str, Array] = {}

    def upload(self, payload: Payload) -> Payload:
        uploaded = super().upload(payload)
        return replace(uploaded, shared={name: self.seen.setdefault(name, a) for name, a in uploaded.shared.items()})


@saboteur("device.upload_has_read")
class UploadsViews(Sabotaged):
    """`upload` gives the host's own memory."""

    def upload(self, payload: Payload) -> Payload:
        return replace(payload)


@saboteur("device.upload_has_read")
class UploadsLargeViews(Sabotaged):
    """`upload` copies what is small, and gives the host's own memory of what is large."""

    def upload(self, payload: Payload) -> Payload:
        large = {name: array for name, array in payload.arrays.items() if array.nbytes > 1 << 16}
        uploaded = super().upload(payload)
        return replace(uploaded, arrays={**uploaded.arrays, **large})


@saboteur("device.download_names_and_types")
class ShortNames(Sabotaged):
    """`download` drops what is before the slash in a name."""

    def download(self, arrays: Mapping[str, Array]) -> Downloaded:
        return super().download({name.rpartition("/")[2]: array for name, array in arrays.items()})


@saboteur("device.download_names_and_types")
class Lists(Sabotaged):
    """`download` gives lists where there is one axis."""

    def download(self, arrays: Mapping[str, Array]) -> Any:
        found = super().download(arrays).result()
        return Downloaded({name: array.tolist() if array.ndim == 1 else array for name, array in found.items()})


class _Late:
    """A result that is copied when it is asked for."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = arrays

    def result(self) -> Mapping[str, NDArray[Any]]:
        return {name: np.array(array) for name, array in self.arrays.items()}


@saboteur("device.download_names_and_types")
class DownloadsTheCallersDict(Sabotaged):
    """`download` looks into the dict it was given when its result is asked for."""

    def download(self, arrays: Mapping[str, Array]) -> Any:
        return _Late(arrays)


@saboteur("device.download_results_stay")
class DownloadsViews(Sabotaged):
    """`download` gives the device's own memory."""

    def download(self, arrays: Mapping[str, Array]) -> Downloaded:
        return Downloaded({name: np.asarray(array) for name, array in arrays.items()})


@saboteur("device.download_results_stay")
class CopiesWhatIsWhole(Sabotaged):
    """Downloads are copies, but for parts of arrays that lie in one piece."""

    def download(self, arrays: Mapping[str, Array]) -> Downloaded:
        return Downloaded({k: np.array(a) if a.base is None else np.require(a, None, "C") for k, a in arrays.items()})


class _Once:
    """A result that is gone once it was taken."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.arrays = dict(arrays)

    def result(self) -> Mapping[str, NDArray[Any]]:
        return {name: self.arrays.pop(name) for name in list(self.arrays)}


@saboteur("device.download_results_stay")
class DownloadsOnce(Sabotaged):
    """A download's result is empty the second time."""

    def download(self, arrays: Mapping[str, Array]) -> Any:
        return _Once(super().download(arrays).result())


class _Latest:
    """A download whose arrays are those of the latest."""

    arrays: ClassVar[Mapping[str, NDArray[Any]]] = {}

    def result(self) -> Mapping[str, NDArray[Any]]:
        return self.arrays


@saboteur("device.backends_are_independent")
class OneForAll(Sabotaged):
    """All backends keep what they download in the same place."""

    def download(self, arrays: Mapping[str, Array]) -> Any:
        _Latest.arrays = super().download(arrays).result()
        return _Latest()


@saboteur("device.largest_vocabularies")
class BlocksOfFifteenBits(Sabotaged):
    """`uniform` counts its blocks of four in 15 bits."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        found = super().uniform(seeds, sequences, positions, purpose, width)
        return np.resize(found[:, : 2**17], found.shape) if width > 2**17 and len(seeds) == 1 else found


@saboteur("device.largest_vocabularies")
class LooksAtHalf(Sabotaged):
    """`argmax` looks at 131,072 columns."""

    def argmax(self, x: Array) -> Array:
        return super().argmax(x[:, : 2**17])


@saboteur("device.backends_in_two_threads")
class FirstThreadOnly(Sabotaged):
    """Works in the thread that came first."""

    owner: ClassVar[int | None] = None

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        here = threading.get_native_id()
        if (FirstThreadOnly.owner or here) != here:
            raise RuntimeError("another thread is using the device")
        FirstThreadOnly.owner = here
        return super().apply_bitmask(logits, bitmask, rows)


@saboteur("device.closing_ends_one_backend")
class ClosesForAll(Sabotaged):
    """Closing one backend ends all of its class."""

    closed: ClassVar[bool] = False

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        if self.closed:
            raise RuntimeError("closed")
        return super().apply_bitmask(logits, bitmask, rows)

    def close(self) -> None:
        type(self).closed = True


@saboteur("device.closing_ends_one_backend")
class ClosesWhatAMaskOpened(Sabotaged):
    """Closes what only a mask opens."""

    opened: Any

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        self.opened = True
        return super().apply_bitmask(logits, bitmask, rows)

    def close(self) -> None:
        del self.opened
