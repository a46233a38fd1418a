"""The making of the demo ranker: its data, its tokenizer, its training and its evaluation.

Needs ``guideway-demo-ranker[training]``. Run ``python -m guideway_demo_ranker.training.train --help``.
"""
