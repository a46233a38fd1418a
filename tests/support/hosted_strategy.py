"""llguidance in grammar hosts, as a separate strategy for the conformance suite."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from guideway.api import Vocabulary, hookimpl
from guideway.api.modifier import ModifierContext
from guideway.plugins import Plugins
from guideway_hosts.hosts import Hosts
from guideway_hosts.strategy import HostedStrategy
from guideway_llguidance.strategy import Strategy as Inner


class Strategy(HostedStrategy):
    contract = "1.0"
    name = "hosted"
    kinds = Inner.kinds
    capabilities = frozenset({"fork"})
    max_rollback = None
    examples = Inner.examples

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        plugins = Plugins()
        cls, record = plugins.load("grammar", Inner.name), plugins.resolve("grammar", Inner.name)
        named = {f"grammar.{Inner.name}": options}
        context = ModifierContext(vocabulary=vocabulary, max_num_sequences=16, max_model_len=256)
        hosts = Hosts(context, {cls: record}, {}, named, num_compilers=2, path=sys.path)
        super().__init__(cls, vocabulary, options, hosts.shared)


@hookimpl
def guideway_grammar_strategy() -> type[Strategy]:
    return Strategy
