"""Secure aggregation, the parts that both ends share: the coordinator learns a cohort's sum and nothing else.

Bonawitz et al. 2017 (doi 10.1145/3133956.3133982) with the mask graph as a parameter (Bell et al. 2020,
doi 10.1145/3372297.3417885), in the form that holds against a server that lies. One idea a file, lowest first::

    errors       everything that can be wrong
    agreement    X25519 keys and what two of them agree on; HKDF-SHA256
    stream       a cipher's key stream into a buffer that is used again and again
    sealing      a share for one peer, readable by that peer alone: AES-256-GCM
    statement    what a signature stands under: domain, h, stage, body
    shamir       a secret in pieces of which any t give it back
    hypergeometric, parameters   how many neighbours and how many shares, and the bound that this achieves
    graph        who is whose neighbour, alike on every device
    lanes        vectors of b-bit integers, tightly packed
    quantize     a clipped delta, a weight and a canary as lanes
    masks        seeds expanded into lanes, added and taken away
    wire         how numbers and strings become bytes, in exactly one way
    header, advertisement, roster, shares, masked, survivors, unmask   the messages of the five exchanges
    liars        holders whose shares are wrong, seen over many dealers at once
    rebuild      a secret out of revealed shares, wrong ones set aside
    opening      the sum out of masked vectors and shares: the server's arithmetic
    memory, consent, device      the device's half as a generator: what it keeps, what it agrees to, what it says

Nothing here draws a random number, reads a clock or opens a socket: entropy and signer are arguments.
"""
