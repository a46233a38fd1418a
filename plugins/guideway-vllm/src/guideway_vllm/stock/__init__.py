"""vLLM's own structured-output backends as grammar strategies: chosen per request, several in one batch.

A constraint that vLLM would refuse for a backend is refused here by vLLM's own functions, with their reason, and the
next strategy is tried for that request. Keywords that a backend ignores are reported, from a table of probed behaviour.
Each module lists where its backend does not meet the contract.
"""
