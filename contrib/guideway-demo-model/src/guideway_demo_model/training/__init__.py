"""The making of the demo model: its data, its tokenizer, its training and its evaluation.

Needs ``guideway-demo-model[training]``. Run ``python -m guideway_demo_model.training.train --help``.
"""
