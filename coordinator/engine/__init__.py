"""Everything that decides about a round. Pure: no clock, no chance, no network, no database, no threads.

``rounds.step(state, event) -> (state, effects)`` is the whole of it; ``rounds.pending(state)`` says what must be in
flight, so that recovery after a crash is: load the state, perform what is pending.
"""
