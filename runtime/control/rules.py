"""Small rules that several heuristic controllers share."""

from __future__ import annotations

from runtime.control.action import ActionCodec
from runtime.control.observation import Observation
from runtime.core import GAMMAS, Decision, Phase, Victim


def kv_choice(observation: Observation, codec: ActionCodec) -> bool:
    """The greedy KV rule: reuse whatever prefix is stored; retain what fits without giving up a draft for it."""
    if not observation.mask[codec.offsets[3] + 1]:
        return False
    if observation.phase is not Phase.COMPLETE:
        return True
    return observation.value("retain_share") <= observation.value("free_share") + observation.value("kv_share")


def may_prefetch(observation: Observation, codec: ActionCodec, draft: int) -> bool:
    """Whether ``draft`` may be loaded in the background now."""
    return bool(observation.mask[codec.offsets[2] + 1 + draft])


def may_speculate(observation: Observation, draft: int) -> bool:
    """Whether ``draft`` may guess at least one token in this round."""
    return observation.phase is Phase.DECODE and bool(observation.mask[1 + draft * len(GAMMAS)])


def longest_gamma(gamma: int, room: int) -> int:
    """The longest draft length that leaves one of ``room`` >= 2 tokens for the target's own.

    It is one of ``GAMMAS`` if ``gamma`` is, as for a policy, else any whole number up to the longest of them.
    """
    lengths = GAMMAS if gamma in GAMMAS else range(1, GAMMAS[-1] + 1)
    return max(length for length in lengths if length < room)


def speculate(observation: Observation, draft: int | None, gamma: int, stop: int, rest: Decision) -> Decision:
    """``rest`` with this draft guessing up to ``gamma`` tokens if it may, else plain."""
    if draft is None or gamma == 0 or not may_speculate(observation, draft):
        return rest
    longest = longest_gamma(gamma, int(observation.value("room_tokens")))
    return rest._replace(draft=draft, gamma=min(gamma, longest), stop=stop)


def background(observation: Observation, codec: ActionCodec, wanted: int | None, reuse_kv: bool) -> Decision:
    """Prefetch ``wanted`` if it may be, handle KV greedily, give up stored KV before drafts where that is enough."""
    kv = reuse_kv and kv_choice(observation, codec)
    if wanted is None or not may_prefetch(observation, codec, wanted):
        return Decision(kv=kv, victim=Victim.KV)
    return Decision(prefetch=wanted, kv=kv, victim=victim_of_load(observation, wanted))


def victim_of_load(observation: Observation, draft: int) -> Victim:
    """Stored KV, unless a draft has to go in any case: then giving up the KV too would be for nothing."""
    room = observation.value("free_share") + observation.value("kv_share")
    return Victim.DRAFTS if float(observation.per_draft("size_share")[draft]) > room else Victim.KV
