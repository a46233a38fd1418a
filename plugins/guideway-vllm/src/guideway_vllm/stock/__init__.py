"""vLLM's own structured-output backends as grammar strategies: per request, several in one batch, none latched.

What vLLM itself would refuse for a backend is refused here, by vLLM's own functions and with their reason; the next
strategy is then tried for that request, and only for that one. What vLLM would let pass and the backend drop is named,
from a table of what it does. Where a backend falls short of the contract, its module says so.
"""
