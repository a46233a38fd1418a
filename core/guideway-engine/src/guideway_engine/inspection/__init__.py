"""A constraint and a text taken apart: which strategy, what each token had to obey, where and why it is refused."""
