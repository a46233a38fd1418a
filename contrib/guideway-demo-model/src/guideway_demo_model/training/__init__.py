"""Training and evaluation of the demo model, with its data and its tokenizer.

Needs ``guideway-demo-model[training]``. Run ``python -m guideway_demo_model.training.train --help``.
"""
