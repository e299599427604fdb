"""Learning and judging: policies, training, bandits, oracles, evaluation, reports, export."""
