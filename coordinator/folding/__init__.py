"""From the updates of a round to the next checkpoint: validation, running sums, the mean, block by block."""
