"""Modifier hosts: processes in which the scheduler's half of logit modifiers works, so that what crashes, hangs or eats
the memory there costs the sequences it was working on and not the server.

`HostedModifier` stands in the serving process for a modifier that lives in a host, and obeys the same contract::

    serving process                  fork server                      forked from it
    HostedModifier ─ ModifierHosts ─ imports and builds modifiers ─┬─ hosts that hold nothing: companions, keys, and a
                                                                   │  first try of what compiles
                                                                   └─ one host for the states of each modifier

The processes are those of `guideway_hosts`, with modifiers in them.
"""
