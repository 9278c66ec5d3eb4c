"""From the updates of a round to the next model: weights, rules, server optimizers.

Pure arithmetic on blocks of vectors.
"""
