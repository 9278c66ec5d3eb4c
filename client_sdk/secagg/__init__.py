"""Secure aggregation, the protocol that devices and coordinator share: the coordinator learns only a cohort's sum.

Bonawitz et al. 2017 (doi 10.1145/3133956.3133982) with the mask graph as a parameter (Bell et al. 2020,
doi 10.1145/3372297.3417885), in the form that is secure against a malicious server. The files, lowest layer first::

    errors       all errors
    agreement    X25519 key agreement; HKDF-SHA256; a key stream, written into a reused buffer
    statement    the bytes that a device signs: domain, h, stage, body; the canonical encoding of numbers and strings
    shamir       a secret split into shares, any t of which rebuild it
    parameters   how many neighbours and how many shares, and the bound that this achieves
    graph        the mask graph: each device's neighbours, equal on every device
    lanes        vectors of b-bit integers, tightly packed
    noise        the discrete Gaussian, drawn exactly, and a device's share of a sum's noise
    quantize     a clipped delta, a weight and a canary as lanes
    masks        seeds expanded into lanes, added and subtracted; a masked vector's description
    header       an attempt's terms, with those of the plan as an assignment carries them
    roster       advertisements, how the authority vouches for them, and the list of an attempt's devices
    shares       sealed pairs of shares, and what a dealer signs of each, so that everybody can tell a wrong one
    complaints   rows that do not open, and how that is settled before a list is shown
    survivors    whose vectors are in the sum, and the shares that are revealed for it
    opening      secrets rebuilt from t revealed shares, and the sum from masked vectors: the server's arithmetic
    memory, consent, device      the device's part as a generator: what it stores, accepts and sends

Nothing here draws a random number, reads a clock or opens a socket: entropy and signer are arguments.
"""
