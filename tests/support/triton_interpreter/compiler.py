"""The compiler interface of Triton; nothing is ever compiled."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import BaseBackend


class InterpreterBackend(BaseBackend):
    """Refuses to compile."""

    @staticmethod
    def supports_target(target: Any) -> bool:
        return bool(target.backend == "cpu")

    def hash(self) -> str:
        return "interpreter"

    def parse_options(self, options: Any) -> Any:
        return options

    def add_stages(self, stages: Any, options: Any, language: Any) -> None:
        raise NotImplementedError("this backend compiles nothing; set TRITON_INTERPRET=1")

    def load_dialects(self, context: Any) -> None:
        pass

    def get_module_map(self) -> dict[str, Any]:
        return {}
