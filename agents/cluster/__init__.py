"""Many runs on many machines, with Ray: sweeps, hyperparameters, evaluation and recording. Extra ``cluster``."""
