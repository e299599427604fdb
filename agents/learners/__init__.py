"""The algorithms, one a file; ``agents.ppo.build_learner`` chooses among them."""
