"""Training and evaluation of the demo ranker, with its data and its tokenizer.

Needs ``guideway-demo-ranker[training]``. Run ``python -m guideway_demo_ranker.training.train --help``.
"""
