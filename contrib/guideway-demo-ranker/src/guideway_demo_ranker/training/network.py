"""The network before training, and the hints for its training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from transformers import BertConfig, BertForSequenceClassification

from guideway_demo_ranker.training.data import Ranking, relations
from guideway_demo_ranker.training.tokenizer import CONTEXT

__all__ = ["Hints", "new_model"]

HEAD_SIZE = 32
SHARPNESS = 0.9
"""Initial weight with which a token attends to equal tokens: they, including itself, get most of its attention."""
TYPE_SIZE = 0.01
"""Initial size of the embeddings of the two types, per dimension; tokens' embeddings have 0.02."""


def new_model(vocabulary_size: int, *, hidden: int, layers: int) -> BertForSequenceClassification:
    """Return a model to be trained. In half of the heads of its first layer, tokens initially attend to equal tokens in
    both texts, so that training need not discover this by chance."""
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // HEAD_SIZE,
        intermediate_size=2 * hidden,
        max_position_embeddings=CONTEXT,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=0,
    )
    config.num_labels = 1
    model = BertForSequenceClassification(config)
    bert: Any = model.bert
    first, embeddings = bert.encoder.layer[0].attention.self, bert.embeddings
    with torch.no_grad():
        side = torch.tensor([1.0, -1.0]).repeat(hidden // 2)
        embeddings.token_type_embeddings.weight.copy_(TYPE_SIZE * torch.stack([side, -side]))
        embeddings.position_embeddings.weight.mul_(0.1)
        alike = torch.randn(hidden // 2, hidden) * SHARPNESS * hidden**-0.5
        alike -= torch.outer(alike @ side, side) / hidden  # makes it independent of which text a token is in
        for projection in (first.query, first.key):
            projection.weight[: hidden // 2] = alike
    model.train()
    return model


class Hints(nn.Module):
    """Additional tasks of a model, only in training: after the first layer, name the fact that is asked for and the
    fact in the document; after the last, say whether these facts are the same, and whether both texts have the same
    entity. The score needs all of this at once."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self._relations = {str(relation): index for index, relation in enumerate(relations())}
        self._after_first = nn.Linear(hidden, 2 * len(self._relations))
        self._after_last = nn.Linear(hidden, 2)

    def forward(self, first: Tensor, last: Tensor, rankings: list[Ranking]) -> Tensor:
        """Return the loss. `first` and `last` are the vectors of the first token after these layers, ``[n, hidden]``,
        for the documents of all rankings, in order."""
        asked = [self._relations[ranking.relation] for ranking in rankings for _ in ranking.documents]
        told = [self._relations[relation] for ranking in rankings for relation in ranking.told]
        facts = torch.tensor([asked, told])
        same_entity = torch.tensor([same for ranking in rankings for same in ranking.same_entity])
        same = torch.stack([facts[0] == facts[1], same_entity], dim=1).float()
        which = self._after_first(first).view(len(asked), 2, -1).transpose(0, 1)
        return cross_entropy(which.flatten(0, 1), facts.flatten()) + binary_cross_entropy_with_logits(
            self._after_last(last), same
        )
