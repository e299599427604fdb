"""Draft bandits: every draft is an arm."""

from agents.bandits.base import DraftBandit
from agents.bandits.epsilon import EpsilonGreedyController
from agents.bandits.exp3 import Exp3Controller
from agents.bandits.thompson import ThompsonController
from agents.bandits.ucb import UcbController

__all__ = ["DraftBandit", "EpsilonGreedyController", "Exp3Controller", "ThompsonController", "UcbController"]
