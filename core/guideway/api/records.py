"""What each token of an output was drawn from, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # so that a command that draws no token starts without NumPy
    import os

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Records"]


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """One entry per token, in the order of the tokens. Log-probabilities are natural logarithms."""

    model: NDArray[np.float32]
    """``float32[m]``: the log-probability of the token under the model: of its raw logits."""
    drawn: NDArray[np.float32]
    """``float32[m]``: the log-probability under the distribution that the token was drawn from: after masks,
    modifiers, penalties, temperature and filters; at temperature 0 without a temperature or filters."""
    allowed: NDArray[np.int32]
    """``int32[m]``: the number of tokens that were allowed: by the grammar, modifiers up to `Stage.MASK` and bans."""
    pressure: NDArray[np.float32]
    """``float32[m]``: the probability, under the model, that an allowed token comes; 1: the mask takes nothing away,
    near 0: the output is one that the model would not have written."""
    changed: NDArray[np.bool_]
    """``bool[m, len(modifiers)]``: True where the modifier changed a logit of the token's row, or drew the token."""
    modifiers: tuple[str, ...] = ()
    """The names of the modifiers that changed or drew something; ``grammar`` is the constraint."""

    def __len__(self) -> int:
        return len(self.model)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Records):
            return NotImplemented
        from numpy import array_equal

        return all(array_equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    def changed_by(self, index: int) -> tuple[str, ...]:
        """Return the names of the modifiers that changed the row of the token at `index`."""
        return tuple(name for name, did in zip(self.modifiers, self.changed[index].tolist(), strict=True) if did)

    def to_lists(self) -> dict[str, Any]:
        """Return the arrays as lists, for JSON, with None for numbers that are not finite, and under ``changed`` by
        modifier the indices of the tokens whose rows it changed."""
        lists: dict[str, Any] = {
            name: getattr(self, name).tolist() for name in ("model", "drawn", "allowed", "pressure")
        }
        for name in ("model", "drawn"):
            lists[name] = [value if isfinite(value) else None for value in lists[name]]
        columns = zip(self.modifiers, self.changed.T, strict=True)
        return lists | {"changed": {name: column.nonzero()[0].tolist() for name, column in columns}}

    @classmethod
    def from_lists(cls, lists: Mapping[str, Any]) -> Records:
        """Return the records whose `to_lists` this is, with NaN for None. Raises KeyError, TypeError, ValueError and
        IndexError for other data."""
        import numpy as np

        changed = np.zeros((len(lists["model"]), len(lists["changed"])), dtype=np.bool_)
        for column, indices in enumerate(lists["changed"].values()):
            changed[indices, column] = True
        return cls(
            model=np.array(lists["model"], dtype=np.float32),
            drawn=np.array(lists["drawn"], dtype=np.float32),
            allowed=np.array(lists["allowed"], dtype=np.int32),
            pressure=np.array(lists["pressure"], dtype=np.float32),
            changed=changed,
            modifiers=tuple(lists["changed"]),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the arrays to a compressed ``.npz`` file, under the names of the fields. Raises OSError."""
        import numpy as np

        arrays: dict[str, Any] = {each.name: np.asarray(getattr(self, each.name)) for each in fields(self)}
        arrays["modifiers"] = np.array(self.modifiers, dtype=np.str_)  # also if it is empty
        with Path(path).open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Records:
        """Return the records that `save` wrote. Raises OSError, KeyError, and ValueError for another file."""
        import numpy as np

        with np.load(path, allow_pickle=False) as file:
            arrays = {each.name: file[each.name] for each in fields(cls)}
        return cls(**(arrays | {"modifiers": tuple(arrays["modifiers"].tolist())}))

    @classmethod
    def join(cls, parts: Sequence[tuple[Records, int, int]]) -> Records:
        """Return entries `start` to `end` of each (records, start, end), one after the other."""
        import numpy as np

        columns: dict[str, NDArray[np.bool_]] = {}
        num_tokens, place = sum(end - start for _, start, end in parts), 0
        for records, start, end in parts:
            for name, column in zip(records.modifiers, records.changed[start:end].T, strict=True):
                if column.any():
                    columns.setdefault(name, np.zeros(num_tokens, dtype=np.bool_))[place : place + end - start] = column
            place += end - start

        def joined(name: str, dtype: type) -> NDArray[Any]:
            found = [getattr(records, name)[start:end] for records, start, end in parts]
            return np.concatenate([np.empty(0, dtype=dtype), *found])

        return cls(
            model=joined("model", np.float32),
            drawn=joined("drawn", np.float32),
            allowed=joined("allowed", np.int32),
            pressure=joined("pressure", np.float32),
            changed=np.array(list(columns.values()), dtype=np.bool_).reshape(len(columns), num_tokens).T,
            modifiers=tuple(columns),
        )
